//! Unembedding of a given residual stream.

use burn::tensor::Tensor;

use super::HookedEncoder;
use crate::error::{InputError, Result};

impl HookedEncoder {
    /// Implements [`HookedModel::unembed`](crate::driver::HookedModel::unembed).
    pub(super) fn logits_of_stream(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
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
