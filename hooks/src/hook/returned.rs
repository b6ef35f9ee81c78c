//! Return types of hook closures.

use burn::tensor::Tensor;

use crate::error::BoxError;

/// Return type of an editing closure: a tensor, `()` (keeps the old tensor), or an `Option` or `Result` of these.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::IntoEdit;
/// let ones = Tensor::<1>::ones([2], &Device::flex());
/// assert!(ones.clone().into_edit()?.is_some());
/// assert!(IntoEdit::<1>::into_edit(())?.is_none()); // `()` keeps the old tensor
/// let failed: Result<Tensor<1>, &str> = Err("too small");
/// assert_eq!(failed.into_edit().unwrap_err().to_string(), "too small"); // the run fails with this error
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that edits must return `Tensor<{D}>`, not `{Self}`",
    label = "this closure returns `{Self}`",
    note = "return the tensor that replaces the old one: `hook::z(0).edit(|z, _| z * 2.0)`",
    note = "or return an `Option` of the tensor (`None` keeps the old one), `()`, or a `Result` of any of these",
    note = "for a point given by name, annotate the rank: `at(\"z0\").edit(|z: Tensor<4>, _| z * 2.0)`"
)]
pub trait IntoEdit<const D: usize> {
    /// The replacement, or `None` to keep the tensor.
    ///
    /// # Errors
    /// The closure's error, which stops the run.
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError>;
}

impl<const D: usize> IntoEdit<D> for Tensor<D> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(Some(self))
    }
}

impl<const D: usize> IntoEdit<D> for Option<Tensor<D>> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(self)
    }
}

impl<const D: usize> IntoEdit<D> for () {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(None)
    }
}

impl<const D: usize, T: IntoEdit<D>, E: Into<BoxError>> IntoEdit<D> for Result<T, E> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        self.map_err(Into::into)?.into_edit()
    }
}

/// Return type of a reading closure: `()` or a `Result` of `()`.
///
/// ```
/// use hooklens_hooks::IntoRead;
/// assert!(().into_read().is_ok());
/// assert!(Err::<(), _>("seen enough").into_read().is_err()); // the run fails with this error
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that reads must return nothing, not `{Self}`",
    label = "this closure returns `{Self}`",
    note = "end the closure's last expression with a semicolon: `hook::z(0).read(|z, _| {{ shapes.push(z.dims()); }})`",
    note = "the closure may return `()` or a `Result<(), _>`; to change the tensor, use `edit`"
)]
pub trait IntoRead {
    /// Returns `Ok` if the run may continue.
    ///
    /// # Errors
    /// The closure's error, which stops the run.
    fn into_read(self) -> Result<(), BoxError>;
}

impl IntoRead for () {
    fn into_read(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> IntoRead for Result<(), E> {
    fn into_read(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}
