//! All weights of an encoder.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::model::{Attention, Linear, Mlp, Norm};

/// Every weight of an encoder.
#[derive(Module, Debug)]
pub struct EncoderWeights {
    /// Token, position and type vectors.
    pub embed: EncoderEmbed,
    /// The blocks, first to last.
    pub blocks: Vec<EncoderBlock>,
    /// What names masked tokens.
    pub mlm_head: Option<MlmHead>,
    /// A linear map of the first position, `[d_model, d_model]`, before a tanh.
    pub pooler: Option<Linear>,
    /// From the pooled vector to whether the second text follows the first, `[d_model, 2]`.
    pub nsp_head: Option<Linear>,
}

/// Token, position and type vectors, and the norm of their sum.
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
#[derive(Module, Debug)]
pub struct MlmHead {
    /// `[d_model, d_model]`.
    pub dense: Linear,
    /// Norm before the unembedding.
    pub ln: Norm,
    /// `[d_model, d_vocab]`.
    pub unembed: Linear,
}

/// Which heads a model's files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// The masked-token head.
    pub mlm: bool,
    /// The pooler.
    pub pooler: bool,
    /// The next-sentence head, which reads the pooler.
    pub nsp: bool,
}

impl Heads {
    /// No head.
    pub(super) const NONE: Heads = Heads { mlm: false, pooler: false, nsp: false };
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

    /// Which heads there are.
    pub fn heads(&self) -> Heads {
        Heads { mlm: self.mlm_head.is_some(), pooler: self.pooler.is_some(), nsp: self.nsp_head.is_some() }
    }
}
