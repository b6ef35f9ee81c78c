//! Inputs of an encoder-decoder: the encoder's input, and the decoder's tokens so far.

use crate::driver::Input;

/// Input of the encoder and input of the decoder. The decoder's input defaults to the start token.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let start = model.decoder_start_token();
/// let first = model.forward([5, 6, 7, 1])?; // the first token's logits
/// let same = model.forward(([5, 6, 7, 1], [start]))?;
/// assert_eq!((first - same).abs().max().into_scalar::<f32>(), 0.0);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct EncoderDecoderInput {
    pub(super) encoder: Input,
    pub(super) decoder: Option<Input>,
}

impl<I: Into<Input>> From<I> for EncoderDecoderInput {
    fn from(encoder: I) -> Self {
        Self { encoder: encoder.into(), decoder: None }
    }
}

impl<E: Into<Input>, D: Into<Input>> From<(E, D)> for EncoderDecoderInput {
    fn from((encoder, decoder): (E, D)) -> Self {
        Self { encoder: encoder.into(), decoder: Some(decoder.into()) }
    }
}
