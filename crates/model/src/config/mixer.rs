//! What moves information between positions in one layer.

use serde::{Deserialize, Serialize};

use super::{GatedDelta, ShortConv, StateSpace};

/// What moves information between positions in one layer, in models whose layers differ.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::Mixer;
/// // The second layer's heads are twice as wide, and share one head of keys and values.
/// let wide = Mixer::Attention { n_kv_heads: 1, d_head: 16 };
/// let mixers = vec![Mixer::Attention { n_kv_heads: 2, d_head: 8 }, wide];
/// let config = TransformerConfig { n_kv_heads: 2, mixers, ..TransformerConfig::new(2, 32, 4, 100, 32) };
/// assert_eq!((config.n_kv_heads_of(1), config.d_head_of(1)), (1, 16));
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], ["q1", "k1"])?;
/// assert_eq!((cache.get(hook::q(1))?.dims(), cache.get(hook::k(1))?.dims()), ([1, 3, 4, 16], [1, 3, 1, 16]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention with so many heads of keys and values, all of the layer's heads of this width.
    Attention {
        /// Heads of keys and values.
        n_kv_heads: usize,
        /// Width of a head.
        d_head: usize,
    },
    /// A gated delta net, which has no pattern, and of which a cache holds a state.
    GatedDelta(GatedDelta),
    /// A state space of Mamba 2, of which the same is true.
    StateSpace(StateSpace),
    /// A gated convolution over the last positions, of which a cache holds those positions (LFM2).
    ShortConv(ShortConv),
    /// Nothing: the layer has an MLP alone (Nemotron-H).
    None,
}
