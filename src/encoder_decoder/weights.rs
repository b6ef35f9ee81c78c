//! All weights of an encoder with a decoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, Block, Linear, Mlp, Norm};

/// Every weight of an encoder with a decoder.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let (weights, config) = (&model.weights, model.config());
/// assert_eq!(weights.decoder.len(), config.n_decoder_layers);
/// assert_eq!(weights.decoder_bias.val().dims(), [config.relative_buckets, config.n_heads]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderDecoderWeights {
    /// One vector a token, `[d_vocab, d_model]`, read by both.
    pub embed: Param<Tensor<2>>,
    /// The encoder's blocks.
    pub encoder: Vec<Block>,
    /// Bias of the encoder's scores, `[bucket, head]`.
    pub encoder_bias: Param<Tensor<2>>,
    /// Norm of the encoder's last stream.
    pub encoder_ln: Norm,
    /// The decoder's blocks.
    pub decoder: Vec<DecoderBlock>,
    /// Bias of the decoder's own scores, `[bucket, head]`.
    pub decoder_bias: Param<Tensor<2>>,
    /// Norm before the unembedding.
    pub decoder_ln: Norm,
    /// `[d_model, d_vocab]`.
    pub unembed: Linear,
}

/// One block of a decoder: attention, attention to the encoder, MLP.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let block = &model.weights.decoder[0];
/// assert_eq!(block.cross_attn.k.weight.val().dims(), block.attn.k.weight.val().dims());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct DecoderBlock {
    /// Norm before attention.
    pub ln1: Norm,
    /// Attention.
    pub attn: Attention,
    /// Norm before attention to the encoder.
    pub ln2: Norm,
    /// Attention to the encoder.
    pub cross_attn: Attention,
    /// Norm before the MLP.
    pub ln3: Norm,
    /// The MLP.
    pub mlp: Mlp,
}

impl EncoderDecoderWeights {
    /// Where the weights live.
    pub fn device(&self) -> Device {
        self.embed.val().device()
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.num_params()
    }
}
