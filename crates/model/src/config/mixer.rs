//! The token mixer of a layer.

use serde::{Deserialize, Serialize};

use super::{GatedDelta, ShortConv, StateSpace};

/// The token mixer of one layer, for models whose layers differ.
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
    /// Attention, with sizes of this layer.
    Attention {
        /// Number of key/value heads.
        n_kv_heads: usize,
        /// Width of a head.
        d_head: usize,
    },
    /// A gated delta net. It has no attention pattern, and its cache is a state matrix.
    GatedDelta(GatedDelta),
    /// A Mamba 2 state space. It has no attention pattern, and its cache is a state matrix.
    StateSpace(StateSpace),
    /// A gated short convolution, which caches its last positions (LFM2).
    ShortConv(ShortConv),
    /// No mixer: the layer has only an MLP (Nemotron-H).
    None,
}
