//! Unembedding of a given residual stream.

use burn::tensor::Tensor;

use super::HookedEncoder;
use crate::error::{InputError, Result};

impl HookedEncoder {
    /// Decodes a residual stream as if it were the last layer's, `[batch, pos, d_vocab]`: applies the final norm, if
    /// the model has one (pre-norm blocks), and the masked-token head.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let gap = model.unembed(model.encode([2, 5, 9, 3])?)? - model.forward([2, 5, 9, 3])?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NoHead`] if the model has no masked-token head, [`InputError::Residual`] for a stream of the wrong
    /// width.
    pub fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        check_width(&stream, self.config().d_model)?;
        let head = self.weights.parts.mlm_head.as_ref().ok_or(InputError::NoHead { head: "masked-token" })?;
        let stream = match &self.weights.parts.ln_final {
            Some(ln_final) => ln_final.without_hooks(stream),
            None => stream,
        };
        let features = self.config.head_activation.apply(head.dense.forward(stream));
        Ok(head.unembed.forward(head.ln.without_hooks(features)))
    }
}

/// Checks that a residual stream has the model's width.
pub(crate) fn check_width(stream: &Tensor<3>, d_model: usize) -> Result<(), InputError> {
    match stream.dims() {
        [_, _, width] if width == d_model => Ok(()),
        given => Err(InputError::Residual { given: given.to_vec(), d_model }),
    }
}
