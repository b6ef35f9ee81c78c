//! All weights of an encoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, Linear, Mlp, Norm};

/// Every weight of an encoder.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
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
    /// The blocks, first to last.
    pub blocks: Vec<EncoderBlock>,
    /// The masked-token head.
    pub mlm_head: Option<MlmHead>,
    /// A linear map of the first position, `[d_model, d_model]`, before a tanh.
    pub pooler: Option<Linear>,
    /// From the pooled vector to whether the second text follows the first, `[d_model, 2]`.
    pub nsp_head: Option<Linear>,
}

/// Token, position and type vectors, and the norm of their sum.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
/// let (embed, config) = (&model.weights.embed, model.config());
/// assert_eq!(embed.positions.val().dims(), [config.n_ctx, config.d_model]);
/// assert_eq!(embed.token_types.as_ref().map(|types| types.val().dims()[0]), Some(2));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderEmbed {
    /// `[d_vocab, d_model]`.
    pub tokens: Param<Tensor<2>>,
    /// `[n_ctx, d_model]`.
    pub positions: Param<Tensor<2>>,
    /// `[token_type, d_model]`.
    pub token_types: Option<Param<Tensor<2>>>,
    /// Norm of the sum.
    pub norm: Norm,
}

/// One block: attention, a norm, the MLP, a norm.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
/// let (block, config) = (&model.weights.blocks[0], model.config());
/// assert_eq!(block.mlp.input.weight.val().dims(), [config.d_model, config.d_mlp]);
/// assert!(block.ln1.w.is_some() && block.ln2.b.is_some());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct EncoderBlock {
    /// Attention.
    pub attn: Attention,
    /// Norm of the stream after attention.
    pub ln1: Norm,
    /// The MLP.
    pub mlp: Mlp,
    /// Norm of the stream after the MLP.
    pub ln2: Norm,
}

/// The masked-token head: a linear map, the activation function, a norm, the unembedding.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
/// let config = model.config();
/// let named = model.weights.mlm_head.as_ref().map(|head| head.unembed.weight.val().dims());
/// assert_eq!(named, Some([config.d_model, config.d_vocab]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct MlmHead {
    /// `[d_model, d_model]`.
    pub dense: Linear,
    /// Norm before the unembedding.
    pub ln: Norm,
    /// `[d_model, d_vocab]`.
    pub unembed: Linear,
}

/// Which output heads an encoder has: those its files hold.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// use hooklens::encoder::OutputHeads;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
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
