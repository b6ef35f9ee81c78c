//! Unembedding of a given residual stream.

use burn::tensor::Tensor;

use super::HookedEncoderDecoder;
use crate::encoder::check_width;
use crate::error::Result;

impl HookedEncoderDecoder {
    /// Implements [`HookedModel::unembed`](crate::driver::HookedModel::unembed).
    pub(super) fn logits_of_stream(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        check_width(&stream, self.config.d_decoder_model)?;
        Ok(self.logits(self.weights.parts.decoder_ln.without_hooks(stream)))
    }
}
