//! All weights of a transformer.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::block::Block;
use super::linear::Linear;
use super::norm::Norm;

/// Every weight of a transformer: a Burn module, so that Burn's optimizers can train it where it is on a device with
/// autodiff ([`LoadOptions::trainable`](crate::LoadOptions::trainable)).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let weights = &model.weights;
/// assert_eq!((weights.blocks.len(), weights.unembed.weight.val().dims()), (4, [64, 61]));
/// println!("{} weights on {:?}", weights.count(), weights.device());
/// # Ok::<(), hooklens::Error>(())
/// ```
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
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let embed = &model.weights.embed;
/// let mary = model.to_single_token("Mary")? as usize;
/// assert_eq!(embed.tokens.val().narrow(0, mary, 1).dims(), [1, 64]); // its vector
/// assert!(embed.positions.is_some() && embed.norm.is_none());
/// # Ok::<(), hooklens::Error>(())
/// ```
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
