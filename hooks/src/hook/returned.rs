//! What a hook's closure may return.

use burn::tensor::Tensor;

use super::BoxError;

/// What an editing closure may return: a tensor, nothing (keep the old one), or either as an
/// option or a result.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::IntoEdit;
/// let ones = Tensor::<1>::ones([2], &Device::flex());
/// assert!(ones.clone().into_edit()?.is_some());
/// assert!(IntoEdit::<1>::into_edit(())?.is_none()); // nothing given: the tensor stays
/// let failed: Result<Tensor<1>, &str> = Err("too small");
/// assert_eq!(failed.into_edit().unwrap_err().to_string(), "too small"); // the run ends with this
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that edits gives `Tensor<{D}>`, and not `{Self}`",
    label = "this closure gives `{Self}`",
    note = "a hook gives the tensor in the place of the old one: `hook::z(0).edit(|z, _| z * 2.0)`",
    note = "it may also give an `Option` of it (`None` keeps the old one), `()`, or a `Result` of any of these",
    note = "of a point that is named by text, say the rank: `at(\"z0\").edit(|z: Tensor<4>, _| z * 2.0)`"
)]
pub trait IntoEdit<const D: usize> {
    /// The replacement, or `None` to keep the tensor.
    ///
    /// # Errors
    /// Whatever the closure reported; it stops the run.
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

/// What a reading closure may return: nothing, or a result of nothing.
///
/// ```
/// use hooklens_hooks::IntoRead;
/// assert!(().into_read().is_ok());
/// assert!(Err::<(), _>("seen enough").into_read().is_err()); // the run ends with this
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that reads gives nothing, and not `{Self}`",
    label = "this closure gives `{Self}`",
    note = "end it with a semicolon: `hook::z(0).read(|z, _| {{ shapes.push(z.dims()); }})`",
    note = "it may give `()` or a `Result<(), _>`; a hook that changes the tensor is made by `edit`"
)]
pub trait IntoRead {
    /// Whether the run may go on.
    ///
    /// # Errors
    /// Whatever the closure reported; it stops the run.
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
