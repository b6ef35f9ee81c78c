//! Reading tensors back to the host: scalars, vectors, ndarrays, argmax tokens.

use burn::tensor::{Int, Tensor};
use hooklens_hooks::{Activation, HookError};
use ndarray::{ArrayD, IxDyn};

use crate::activations::AnalysisError;
use hooklens_model::error::{BoxError, Result};

/// Numbers out of tensors, for `?`: Burn's own ways panic, or report what is no
/// [`std::error::Error`]. Part of the [prelude](crate::prelude).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun king drum";
/// let loss: f32 = model.loss(text)?.item()?;
/// assert!(loss < 63f32.ln()); // of 63 tokens, none favored
/// let next = model.forward(text)?.argmax_tokens()?; // at each position
/// assert_eq!(model.to_string(&next[5..])?, "sun");
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait TensorExt: sealed::Sealed {
    /// `f32` for floats of any type, `i64` for integers.
    type Number: Copy;

    /// All numbers, in the tensor's shape.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let square = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex());
    /// assert_eq!(square.to_ndarray()?[[1, 0]], 3.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] if the device can't give them.
    fn to_ndarray(&self) -> Result<ArrayD<Self::Number>>;

    /// The one number of a tensor of one element, whatever its rank.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let pair = Tensor::<2>::from_floats([[3.0, 4.0]], &Device::flex());
    /// assert_eq!(pair.clone().square().sum().item()?, 25.0);
    /// let told = pair.item().unwrap_err().to_string();
    /// assert_eq!(told, "the tensor is [1, 2]; expected one element");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] for none or several, and as [`TensorExt::to_ndarray`].
    fn item(&self) -> Result<Self::Number> {
        let all = self.to_ndarray()?;
        match (all.len(), all.first()) {
            (1, Some(one)) => Ok(*one),
            _ => Err(misshapen(all.shape(), "one element")),
        }
    }

    /// All numbers, the last axis's side by side.
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
    /// As [`TensorExt::to_ndarray`].
    fn to_vec(&self) -> Result<Vec<Self::Number>> {
        // Made row by row, so its memory is in that order and begins with the first.
        Ok(self.to_ndarray()?.into_raw_vec_and_offset().0)
    }

    /// The place of the largest number along the last axis, for each place on the others, row by row: of logits
    /// `[batch, pos, d_vocab]` the likeliest tokens, `batch * pos` of them. The first of equal ones; of rows with a NaN
    /// the place of the first NaN, as of Burn's `argmax`. For floats: integers are ids already, which
    /// [`TensorExt::to_vec`] gives.
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
    /// [`AnalysisError::Shape`] if the last axis has no place, and as [`TensorExt::to_ndarray`].
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
        // Not through `f32`, which has no place for all integers.
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

    /// What only tensors are.
    pub trait Sealed {}

    impl<const D: usize> Sealed for Tensor<D> {}
    impl<const D: usize> Sealed for Tensor<D, Int> {}

    /// Numbers whose largest is looked for.
    #[diagnostic::on_unimplemented(
        message = "`argmax_tokens` is for scores of tokens, which are floats",
        label = "these are integers: `to_vec` gives them as they are"
    )]
    pub trait Scores {
        fn largest_places(&self) -> Result<Vec<u32>>;
    }

    impl<const D: usize> Scores for Tensor<D> {
        fn largest_places(&self) -> Result<Vec<u32>> {
            let dims = self.dims();
            if dims.last() == Some(&0) {
                return Err(misshapen(&dims, "a last axis of one place or more"));
            }
            if dims.contains(&0) {
                return Ok(Vec::new());
            }
            let places = self.clone().argmax(D - 1).to_vec()?;
            Ok(places.into_iter().map(|place| place as u32).collect())
        }
    }
}
