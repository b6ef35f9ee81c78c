//! All weights of a transformer.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::block::Block;
use super::linear::Linear;
use super::norm::Norm;

/// Every weight of a transformer: a Burn module, so that Burn's optimizers can train it.
#[derive(Module, Debug)]
pub struct Weights {
    /// Token and position vectors.
    pub embed: Embed,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Norm before the unembedding.
    pub ln_final: Norm,
    /// `[d_model, d_vocab_out]`.
    pub unembed: Linear,
}

/// Token and position vectors.
#[derive(Module, Debug)]
pub struct Embed {
    /// One vector a token, `[d_vocab, d_model]`.
    pub tokens: Param<Tensor<2>>,
    /// One vector a position, `[n_ctx, d_model]`, if positions are learned.
    pub positions: Option<Param<Tensor<2>>>,
    /// Norm of the token vectors.
    pub norm: Option<Norm>,
}

impl Weights {
    /// Where the weights live.
    pub fn device(&self) -> Device {
        self.embed.tokens.val().device()
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.num_params()
    }
}
