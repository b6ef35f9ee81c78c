//! Weights of an encoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, DenseMlp, Linear, Norm};

/// All weights of an encoder.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let (weights, config) = (&model.weights, model.config());
/// assert_eq!(weights.blocks.len(), config.n_layers);
/// assert_eq!(weights.embed.tokens.val().dims(), [config.d_vocab, config.d_model]);
/// assert!(weights.count() > config.d_vocab * config.d_model);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderWeights {
    /// Token, position and type embeddings.
    pub embed: EncoderEmbed,
    /// Relative position weights shared by all layers.
    pub relative: Option<RelativeWeights>,
    /// Blocks in layer order; fewer than there are layers if layers share weights.
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

/// Token, position and type embeddings of width `d_embed`, and the norm of their sum.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let (embed, config) = (&model.weights.embed, model.config());
/// let positions = embed.positions.as_ref().map(|positions| positions.val().dims());
/// assert_eq!(positions, Some([config.n_ctx, config.d_model]));
/// assert_eq!(embed.token_types.as_ref().map(|types| types.val().dims()[0]), Some(2));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderEmbed {
    /// Token embedding, `[d_vocab, d_embed]`.
    pub tokens: Param<Tensor<2>>,
    /// Position embedding, `[n_ctx, d_embed]`.
    pub positions: Option<Param<Tensor<2>>>,
    /// Token type embedding, `[token_type, d_embed]`.
    pub token_types: Option<Param<Tensor<2>>>,
    /// Norm of the sum of the embeddings.
    pub norm: Norm,
    /// Projection to the residual stream, `[d_embed, d_model]`, if the widths differ.
    pub projection: Option<Linear>,
}

/// Relative position weights.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/mpnet")?;
/// let relative = model.weights.relative.as_ref().map(|relative| relative.table.val().dims());
/// assert_eq!(relative, Some([32, model.config().n_heads])); // one number per bucket and head
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct RelativeWeights {
    /// Bias table `[bucket, head]` (MPNet, T5) or relative position embedding `[number, d_model]` (DeBERTa).
    pub table: Param<Tensor<2>>,
    /// Norm of the relative position embeddings.
    pub norm: Option<Norm>,
}

/// Weights of a block: attention and the MLP, with a norm before or after each.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let (block, config) = (&model.weights.blocks[0], model.config());
/// assert_eq!(block.mlp.input.weight.val().dims(), [config.d_model, config.d_mlp]);
/// assert!(block.ln1.w.is_some() && block.ln2.b.is_some());
/// # Ok::<(), hooklens::Error>(())
/// ```
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
    /// Norm before attention, or of the residual stream after it.
    pub ln1: Norm,
    /// The MLP.
    pub mlp: DenseMlp,
    /// Norm before the MLP, or of the residual stream after it.
    pub ln2: Norm,
}

/// Masked-token head: a linear map, the activation function, a norm and the unembedding.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let config = model.config();
/// let named = model.weights.mlm_head.as_ref().map(|head| head.unembed.weight.val().dims());
/// assert_eq!(named, Some([config.d_model, config.d_vocab]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct MlmHead {
    /// Linear map, `[d_model, d_embed]`.
    pub dense: Linear,
    /// Norm before the unembedding.
    pub ln: Norm,
    /// Unembedding, `[d_embed, d_vocab]`.
    pub unembed: Linear,
}

/// Output heads of an encoder, as present in its files.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// use hooklens::encoder::OutputHeads;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// assert_eq!(model.output_heads(), OutputHeads { mlm: true, pooler: true, nsp: true });
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputHeads {
    /// The masked-token head.
    pub mlm: bool,
    /// The pooler.
    pub pooler: bool,
    /// The next-sentence head, which reads the pooler.
    pub nsp: bool,
}

impl OutputHeads {
    /// No heads.
    pub(super) const NONE: OutputHeads = OutputHeads { mlm: false, pooler: false, nsp: false };
}

impl EncoderWeights {
    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.embed.tokens.val().device()
    }

    /// Number of parameters.
    pub fn count(&self) -> usize {
        self.num_params()
    }

    /// Output heads that the model has.
    pub fn output_heads(&self) -> OutputHeads {
        OutputHeads { mlm: self.mlm_head.is_some(), pooler: self.pooler.is_some(), nsp: self.nsp_head.is_some() }
    }
}
