//! All weights of an encoder with a decoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, Linear, Mlp, Norm};

/// Every weight of an encoder with a decoder.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let (weights, config) = (&model.weights, model.config());
/// assert_eq!(weights.decoder.len(), config.n_decoder_layers);
/// assert_eq!(weights.decoder_bias[0].val().dims(), [32, config.n_decoder_heads]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderDecoderWeights {
    /// One vector a token that the encoder reads, `[d_vocab, d_model]`.
    pub embed: Param<Tensor<2>>,
    /// One vector a token that the decoder reads, `[d_decoder_vocab, d_decoder_model]`; the encoder's if none.
    pub decoder_embed: Option<Param<Tensor<2>>>,
    /// One vector a position of the encoder, `[n_ctx, d_model]`, if positions have vectors.
    pub encoder_positions: Option<Param<Tensor<2>>>,
    /// One vector a position of the decoder, `[n_ctx, d_decoder_model]`, if positions have vectors.
    pub decoder_positions: Option<Param<Tensor<2>>>,
    /// Norm of the encoder's first stream.
    pub encoder_embed_ln: Option<Norm>,
    /// Norm of the decoder's first stream.
    pub decoder_embed_ln: Option<Norm>,
    /// The encoder's blocks.
    pub encoder: Vec<EncoderBlock>,
    /// Bias of the encoder's scores by distance, `[bucket, head]`: one for all layers, one a layer, or none.
    pub encoder_bias: Vec<Param<Tensor<2>>>,
    /// Norm of the encoder's last stream.
    pub encoder_ln: Norm,
    /// The decoder's blocks.
    pub decoder: Vec<DecoderBlock>,
    /// Bias of the decoder's own scores by distance, `[bucket, head]`: one for all layers, one a layer, or none.
    pub decoder_bias: Vec<Param<Tensor<2>>>,
    /// Norm before the unembedding.
    pub decoder_ln: Norm,
    /// `[d_decoder_model, d_decoder_vocab]`.
    pub unembed: Linear,
}

/// One block of an encoder: attention, MLP, and the norm before or after each.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let block = &model.weights.encoder[0];
/// assert!(block.mlp.gate.is_none() && block.ln2.b.is_none());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderBlock {
    /// Norm before attention, or of the stream after it.
    pub ln1: Norm,
    /// Attention.
    pub attn: Attention,
    /// Norm of attention's output.
    pub ln1_post: Option<Norm>,
    /// Norm before the MLP, or of the stream after it.
    pub ln2: Norm,
    /// The MLP.
    pub mlp: Mlp,
    /// Norm of the MLP's output.
    pub ln2_post: Option<Norm>,
}

/// One block of a decoder: attention, attention to the encoder, MLP, and the norm before or after each.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let block = &model.weights.decoder[0];
/// assert_eq!(block.cross_attn.k.weight.val().dims(), block.attn.k.weight.val().dims());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct DecoderBlock {
    /// Norm before attention, or of the stream after it.
    pub ln1: Norm,
    /// Attention.
    pub attn: Attention,
    /// Norm of attention's output.
    pub ln1_post: Option<Norm>,
    /// Norm before attention to the encoder, or of the stream after it.
    pub ln2: Norm,
    /// Attention to the encoder.
    pub cross_attn: Attention,
    /// Norm of its output.
    pub ln2_post: Option<Norm>,
    /// Norm before the MLP, or of the stream after it.
    pub ln3: Norm,
    /// The MLP.
    pub mlp: Mlp,
    /// Norm of the MLP's output.
    pub ln3_post: Option<Norm>,
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
