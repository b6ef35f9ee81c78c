//! Weights of an encoder-decoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::names::in_encoder_decoder;
use crate::model::{Attention, DenseMlp, Linear, Norm, Parts};

/// All weights of an encoder-decoder.
#[derive(Module, Debug)]
pub struct EncoderDecoderWeights {
    /// Token embedding of the encoder, `[d_vocab, d_model]`.
    pub embed: Param<Tensor<2>>,
    /// Token embedding of the decoder, `[d_decoder_vocab, d_decoder_model]`; `None` if it shares the encoder's.
    pub decoder_embed: Option<Param<Tensor<2>>>,
    /// Position embedding of the encoder, `[n_ctx, d_model]`, if the model has one.
    pub encoder_positions: Option<Param<Tensor<2>>>,
    /// Position embedding of the decoder, `[n_ctx, d_decoder_model]`, if the model has one.
    pub decoder_positions: Option<Param<Tensor<2>>>,
    /// Norm applied to the encoder's embeddings.
    pub encoder_embed_ln: Option<Norm>,
    /// Norm applied to the decoder's embeddings.
    pub decoder_embed_ln: Option<Norm>,
    /// Blocks of the encoder.
    pub encoder: Vec<EncoderBlock>,
    /// Relative position bias of the encoder's scores, `[bucket, head]`: one for all layers, one per layer, or none.
    pub encoder_bias: Vec<Param<Tensor<2>>>,
    /// Final norm of the encoder.
    pub encoder_ln: Norm,
    /// Blocks of the decoder.
    pub decoder: Vec<DecoderBlock>,
    /// Relative position bias of the decoder's self-attention scores, `[bucket, head]`: one for all layers, one per
    /// layer, or none.
    pub decoder_bias: Vec<Param<Tensor<2>>>,
    /// Final norm of the decoder, before the unembedding.
    pub decoder_ln: Norm,
    /// Unembedding, `[d_decoder_model, d_decoder_vocab]`.
    pub unembed: Linear,
}

/// Weights of an encoder block: attention and MLP, with a norm before or after each.
#[derive(Module, Debug)]
pub struct EncoderBlock {
    /// Norm before attention, or after attention's output is added to the residual stream.
    pub ln1: Norm,
    /// Attention.
    pub attn: Attention,
    /// Norm applied to the attention output.
    pub ln1_post: Option<Norm>,
    /// Norm before the MLP, or after the MLP's output is added to the residual stream.
    pub ln2: Norm,
    /// The MLP.
    pub mlp: DenseMlp,
    /// Norm applied to the MLP output.
    pub ln2_post: Option<Norm>,
}

/// Weights of a decoder block: self-attention, cross-attention and MLP, with a norm before or after each.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    /// Norm before self-attention, or after its output is added to the residual stream.
    pub ln1: Norm,
    /// Self-attention.
    pub attn: Attention,
    /// Norm applied to the self-attention output.
    pub ln1_post: Option<Norm>,
    /// Norm before cross-attention, or after its output is added to the residual stream.
    pub ln2: Norm,
    /// Cross-attention to the encoder.
    pub cross_attn: Attention,
    /// Norm applied to the cross-attention output.
    pub ln2_post: Option<Norm>,
    /// Norm before the MLP, or after the MLP's output is added to the residual stream.
    pub ln3: Norm,
    /// The MLP.
    pub mlp: DenseMlp,
    /// Norm applied to the MLP output.
    pub ln3_post: Option<Norm>,
}

impl Parts for EncoderDecoderWeights {
    fn name_of(fields: &[&str]) -> String {
        in_encoder_decoder(fields)
    }
}

impl EncoderDecoderWeights {
    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.embed.val().device()
    }
}
