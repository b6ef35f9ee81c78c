//! Reading tensors back to the host: scalars, vectors, ndarrays, argmax tokens.

use burn::tensor::{Int, Tensor};
use hooklens_hooks::{Activation, HookError};
use ndarray::{ArrayD, IxDyn};

use crate::activations::AnalysisError;
use hooklens_model::error::{BoxError, Result};

/// Reads tensors back to the host with errors that work with `?`. Burn's own methods panic, or return errors that do
/// not implement [`std::error::Error`]. Part of the prelude.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun king drum";
/// let loss: f32 = model.loss(text)?.item()?;
/// assert!(loss < 63f32.ln()); // the loss if all 63 tokens were equally likely
/// let next = model.forward(text)?.argmax_tokens()?; // at each position
/// assert_eq!(model.to_string(&next[5..])?, "sun");
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait TensorExt: sealed::Sealed {
    /// Element type: `f32` for floats of any type, `i64` for integers.
    type Number: Copy;

    /// Copies all elements into an array of the tensor's shape.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let square = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex());
    /// assert_eq!(square.to_ndarray()?[[1, 0]], 3.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] if the tensor cannot be read from its device.
    fn to_ndarray(&self) -> Result<ArrayD<Self::Number>>;

    /// Returns the only element of a tensor, whatever its rank.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let pair = Tensor::<2>::from_floats([[3.0, 4.0]], &Device::flex());
    /// assert_eq!(pair.clone().square().sum().item()?, 25.0);
    /// let message = pair.item().unwrap_err().to_string();
    /// assert_eq!(message, "the tensor is [1, 2]; expected one element");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] if the tensor does not have exactly one element; otherwise, same as
    /// [`TensorExt::to_ndarray`].
    fn item(&self) -> Result<Self::Number> {
        let all = self.to_ndarray()?;
        match (all.len(), all.first()) {
            (1, Some(one)) => Ok(*one),
            _ => Err(misshapen(all.shape(), "one element")),
        }
    }

    /// Copies all elements in row-major order.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let device = Device::flex();
    /// assert_eq!(Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).to_vec()?, [1.0, 2.0, 3.0, 4.0]);
    /// assert_eq!(Tensor::<1, Int>::from_ints([7, -8], &device).to_vec()?, [7i64, -8]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`TensorExt::to_ndarray`].
    fn to_vec(&self) -> Result<Vec<Self::Number>> {
        // The array is newly created in row-major order, so its memory starts with the first element.
        Ok(self.to_ndarray()?.into_raw_vec_and_offset().0)
    }

    /// Returns the index of the largest element along the last axis for each index of the other axes, in row-major
    /// order. For logits `[batch, pos, d_vocab]`, these are the `batch * pos` most likely tokens. Ties go to the first;
    /// if a row contains NaN, the result is the index of the first NaN, as in Burn's `argmax`. Available for float
    /// tensors only: integer tensors already hold ids, so read them with [`TensorExt::to_vec`].
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let last = ForwardOptions::new().logits(Logits::Last);
    /// let logits = model.forward_with(["king drum king", "fox tea owl fox"], last)?; // [2, 1, d_vocab]
    /// assert_eq!(model.to_string(&logits.argmax_tokens()?)?, "drum tea");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// ```compile_fail
    /// use hooklens::prelude::*;
    /// let ids = Tensor::<2, Int>::from_ints([[1, 2, 3]], &Device::flex());
    /// ids.argmax_tokens(); // these are tokens, not scores of tokens
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] if the last axis is empty; otherwise, same as [`TensorExt::to_ndarray`].
    fn argmax_tokens(&self) -> Result<Vec<u32>>
    where
        Self: sealed::Scores,
    {
        self.largest_places()
    }
}

impl<const D: usize> TensorExt for Tensor<D> {
    type Number = f32;

    fn to_ndarray(&self) -> Result<ArrayD<f32>> {
        Ok(Activation::from(self.clone()).to_ndarray()?)
    }
}

impl<const D: usize> TensorExt for Tensor<D, Int> {
    type Number = i64;

    fn to_ndarray(&self) -> Result<ArrayD<i64>> {
        // `Activation::to_ndarray` converts to `f32`, which cannot represent all integers.
        let io = |source: BoxError| HookError::Io { name: "tensor".into(), source };
        let values = Activation::from(self.clone()).to_data()?.convert::<i64>().try_into_vec::<i64>();
        let values = values.map_err(|e| io(e.into()))?;
        Ok(ArrayD::from_shape_vec(IxDyn(&self.dims()), values).map_err(|e| io(e.into()))?)
    }
}

fn misshapen(given: &[usize], expected: &str) -> hooklens_model::error::Error {
    AnalysisError::Shape { what: "the tensor".into(), given: given.to_vec(), expected: expected.into() }.into()
}

mod sealed {
    use super::{Int, Result, Tensor, TensorExt, misshapen};

    /// Implemented only for tensors.
    pub trait Sealed {}

    impl<const D: usize> Sealed for Tensor<D> {}
    impl<const D: usize> Sealed for Tensor<D, Int> {}

    /// Implemented only for float tensors: the index of the largest score is taken as the token id.
    #[diagnostic::on_unimplemented(
        message = "`argmax_tokens` requires a float tensor of token scores",
        label = "this tensor holds integers; use `to_vec` to read them"
    )]
    pub trait Scores {
        fn largest_places(&self) -> Result<Vec<u32>>;
    }

    impl<const D: usize> Scores for Tensor<D> {
        fn largest_places(&self) -> Result<Vec<u32>> {
            let dims = self.dims();
            if dims.last() == Some(&0) {
                return Err(misshapen(&dims, "a non-empty last axis"));
            }
            if dims.contains(&0) {
                return Ok(Vec::new());
            }
            let places = self.clone().argmax(D - 1).to_vec()?;
            Ok(places.into_iter().map(|place| place as u32).collect())
        }
    }
}
