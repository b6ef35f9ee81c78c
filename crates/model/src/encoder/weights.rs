//! Weights of an encoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::names::in_encoder;
use crate::model::{Attention, DenseMlp, Linear, Norm, Parts};

/// All weights of an encoder.
#[derive(Module, Debug)]
pub struct EncoderWeights {
    /// Token, position and type embeddings.
    pub embed: EncoderEmbed,
    /// Relative position weights shared by all layers.
    pub relative: Option<RelativeWeights>,
    /// Blocks in layer order. Layers that share weights share a block.
    pub blocks: Vec<EncoderBlock>,
    /// Final norm, in models with norms before attention and the MLP.
    pub ln_final: Option<Norm>,
    /// Masked-token head.
    pub mlm_head: Option<MlmHead>,
    /// Pooler: a linear map of the first position, `[d_model, d_model]`, followed by a tanh.
    pub pooler: Option<Linear>,
    /// Next-sentence head on the pooled vector, `[d_model, 2]`.
    pub nsp_head: Option<Linear>,
}

/// Token, position and type embeddings of width `d_embed`, and the norm applied to their sum.
#[derive(Module, Debug)]
pub struct EncoderEmbed {
    /// Token embedding, `[d_vocab, d_embed]`.
    pub tokens: Param<Tensor<2>>,
    /// Position embedding, `[n_ctx, d_embed]`.
    pub positions: Option<Param<Tensor<2>>>,
    /// Token type embedding, `[token_type, d_embed]`.
    pub token_types: Option<Param<Tensor<2>>>,
    /// Norm applied to the summed embeddings.
    pub norm: Norm,
    /// Projection to the residual stream, `[d_embed, d_model]`, if the widths differ.
    pub projection: Option<Linear>,
}

/// Relative position weights.
#[derive(Module, Debug)]
pub struct RelativeWeights {
    /// Bias table `[bucket, head]` (MPNet, T5) or relative position embedding `[number, d_model]` (DeBERTa).
    pub table: Param<Tensor<2>>,
    /// Norm applied to the relative position embeddings.
    pub norm: Option<Norm>,
}

/// Weights of a block: attention and the MLP, with a norm before or after each.
#[derive(Module, Debug)]
pub struct EncoderBlock {
    /// Attention.
    pub attn: Attention,
    /// Key projection of relative positions, `[d_model, head * d_head]`, if it differs from `attn.k` (DeBERTa).
    pub relative_k: Option<Linear>,
    /// Query projection of relative positions, `[d_model, head * d_head]`, if it differs from `attn.q` (DeBERTa).
    pub relative_q: Option<Linear>,
    /// Score bias of this layer, `[bucket, head]`, if layers have their own (UMT5).
    pub relative_bias: Option<Param<Tensor<2>>>,
    /// Norm before attention, or after attention's output is added to the residual stream.
    pub ln1: Norm,
    /// The MLP.
    pub mlp: DenseMlp,
    /// Norm before the MLP, or after the MLP's output is added to the residual stream.
    pub ln2: Norm,
}

/// Masked-token head: a linear map, the activation function, a norm and the unembedding.
#[derive(Module, Debug)]
pub struct MlmHead {
    /// Linear map, `[d_model, d_embed]`.
    pub dense: Linear,
    /// Norm before the unembedding.
    pub ln: Norm,
    /// Unembedding, `[d_embed, d_vocab]`.
    pub unembed: Linear,
}

/// Output heads that an encoder's files contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputHeads {
    /// The masked-token head.
    pub mlm: bool,
    /// The pooler.
    pub pooler: bool,
    /// The next-sentence head, which reads the pooler's output.
    pub nsp: bool,
}

impl OutputHeads {
    /// No heads.
    pub(super) const NONE: OutputHeads = OutputHeads { mlm: false, pooler: false, nsp: false };
}

impl Parts for EncoderWeights {
    fn name_of(fields: &[&str]) -> String {
        in_encoder(fields)
    }
}

impl EncoderWeights {
    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.embed.tokens.val().device()
    }

    /// Output heads that the model has.
    pub fn output_heads(&self) -> OutputHeads {
        OutputHeads { mlm: self.mlm_head.is_some(), pooler: self.pooler.is_some(), nsp: self.nsp_head.is_some() }
    }
}
