//! Unembedding of a given residual stream.

use burn::tensor::Tensor;

use super::HookedEncoderDecoder;
use crate::encoder::check_width;
use crate::error::Result;

impl HookedEncoderDecoder {
    /// Decodes a residual stream of the decoder as if it were the last layer's, `[batch, decoder_pos, d_vocab]`:
    /// applies the final norm and the unembedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let input = ([5, 6, 7, 1], [0, 4]);
    /// let last: Tensor<3> = model.record(input, "decoder.1.hook_resid_post")?.get("decoder.1.hook_resid_post")?;
    /// let gap = model.unembed(last)? - model.forward(input)?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Residual`](crate::error::InputError::Residual) if the stream has the wrong width.
    pub fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        check_width(&stream, self.config.d_decoder_model)?;
        Ok(self.logits(self.weights.parts.decoder_ln.without_hooks(stream)))
    }
}
