//! State spaces of Mamba 2.

use serde::{Deserialize, Serialize};

/// The sizes of a Mamba 2 mixer, whose heads keep one matrix each in place of all keys and values (Dao and Gu 2024).
///
/// At each position a head lets its state `S` (`[d_state, d_head]`) decay, adds the outer product of `B` and its input `x`, by
/// a step `dt`, and reads it with `C`: `S = exp(dt A) S + dt Bᵀ x; y = C S + D x`. `x`, `B` and `C` pass a causal
/// convolution over `width` positions first.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Mixer, NormKind, StateSpace};
/// let space = StateSpace { n_heads: 4, d_head: 8, n_groups: 2, d_state: 6, width: 4 };
/// let mixers = vec![Mixer::StateSpace(space), Mixer::Attention { n_kv_heads: 4, d_head: 8 }];
/// let config = TransformerConfig { mixers, norm: NormKind::Rms, ..TransformerConfig::new(2, 32, 4, 100, 32) };
/// assert_eq!((config.attends(0), config.state_space_of(0)), (false, Some(space)));
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.0.ssm.hook_{x,b,dt}")?;
/// assert_eq!(cache.get::<4>("blocks.0.ssm.hook_x")?.dims(), [1, 3, 4, 8]);
/// assert_eq!(cache.get::<4>("blocks.0.ssm.hook_b")?.dims(), [1, 3, 2, 6]);
/// assert_eq!(cache.get::<3>("blocks.0.ssm.hook_dt")?.dims(), [1, 3, 4]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSpace {
    /// Heads, each with a state of its own.
    pub n_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// Groups of heads that share what they write with and read with (`B` and `C`).
    pub n_groups: usize,
    /// Width of `B` and `C`.
    pub d_state: usize,
    /// Positions that the convolution sees, its own included; two at least.
    pub width: usize,
}

impl StateSpace {
    /// Channels of the convolution: inputs of all heads, then `B` and `C` of all groups.
    pub(crate) fn channels(self) -> usize {
        self.n_heads * self.d_head + 2 * self.n_groups * self.d_state
    }
}
