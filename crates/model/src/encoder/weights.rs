//! All weights of an encoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, Linear, Mlp, Norm};

/// Every weight of an encoder.
///
/// ```
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
    /// Token, position and type vectors.
    pub embed: EncoderEmbed,
    /// What relative positions add to scores, in all layers.
    pub relative: Option<RelativeWeights>,
    /// The blocks, first to last; fewer than layers where layers share them.
    pub blocks: Vec<EncoderBlock>,
    /// Norm of the last stream, where blocks have norms before attention and the MLP.
    pub ln_final: Option<Norm>,
    /// The masked-token head.
    pub mlm_head: Option<MlmHead>,
    /// A linear map of the first position, `[d_model, d_model]`, before a tanh.
    pub pooler: Option<Linear>,
    /// From the pooled vector to whether the second text follows the first, `[d_model, 2]`.
    pub nsp_head: Option<Linear>,
}

/// Token, position and type vectors, of width `d_embed`, and the norm of their sum.
///
/// ```
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
    /// `[d_vocab, d_embed]`.
    pub tokens: Param<Tensor<2>>,
    /// `[n_ctx, d_embed]`.
    pub positions: Option<Param<Tensor<2>>>,
    /// `[token_type, d_embed]`.
    pub token_types: Option<Param<Tensor<2>>>,
    /// Norm of the sum.
    pub norm: Norm,
    /// From there to the stream, `[d_embed, d_model]`, where the widths differ.
    pub projection: Option<Linear>,
}

/// What relative positions add to scores.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/mpnet")?;
/// let relative = model.weights.relative.as_ref().map(|relative| relative.table.val().dims());
/// assert_eq!(relative, Some([32, model.config().n_heads])); // a number for each bucket and head
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct RelativeWeights {
    /// `[bucket, head]` of MPNet and T5, `[number, d_model]` of DeBERTa.
    pub table: Param<Tensor<2>>,
    /// Norm of the vectors.
    pub norm: Option<Norm>,
}

/// One block: attention and the MLP, with a norm after or before each.
///
/// ```
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
    /// Keys of relative positions, `[d_model, head * d_head]`, where `attn.k` does not make them (DeBERTa).
    pub relative_k: Option<Linear>,
    /// Queries of relative positions, `[d_model, head * d_head]`, where `attn.q` does not make them (DeBERTa).
    pub relative_q: Option<Linear>,
    /// What is added to this layer's scores, `[bucket, head]`, where not all layers add the same (UMT5).
    pub relative_bias: Option<Param<Tensor<2>>>,
    /// Norm of the stream after attention, or before it.
    pub ln1: Norm,
    /// The MLP.
    pub mlp: Mlp,
    /// Norm of the stream after the MLP, or before it.
    pub ln2: Norm,
}

/// The masked-token head: a linear map, the activation function, a norm, the unembedding.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let config = model.config();
/// let named = model.weights.mlm_head.as_ref().map(|head| head.unembed.weight.val().dims());
/// assert_eq!(named, Some([config.d_model, config.d_vocab]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct MlmHead {
    /// `[d_model, d_embed]`.
    pub dense: Linear,
    /// Norm before the unembedding.
    pub ln: Norm,
    /// `[d_embed, d_vocab]`.
    pub unembed: Linear,
}

/// Which output heads an encoder has: those its files hold.
///
/// ```
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
    /// No head.
    pub(super) const NONE: OutputHeads = OutputHeads { mlm: false, pooler: false, nsp: false };
}

impl EncoderWeights {
    /// Where the weights live.
    pub fn device(&self) -> Device {
        self.embed.tokens.val().device()
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.num_params()
    }

    /// Which output heads there are.
    pub fn output_heads(&self) -> OutputHeads {
        OutputHeads { mlm: self.mlm_head.is_some(), pooler: self.pooler.is_some(), nsp: self.nsp_head.is_some() }
    }
}
