//! Gated delta nets.

use serde::{Deserialize, Serialize};

/// The sizes of a gated delta net, a linear attention that keeps one matrix a head in place of all keys and values
/// (Yang et al. 2024; Qwen 3 Next, Qwen 3.5).
///
/// At each position a head lets its memory `S` (`[d_key, d_value]`) decay, replaces what it holds for the key by
/// a share `beta` of the value, and reads it with the query: `S = exp(g) S; S += beta kᵀ (v - k S); o = q S`. Queries, keys
/// and values pass a causal convolution over `width` positions first.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{GatedDelta, Mixer, NormKind};
/// let net = GatedDelta { n_key_heads: 2, n_value_heads: 4, d_key: 8, d_value: 6, width: 4 };
/// let mixers = vec![Mixer::GatedDelta(net), Mixer::Attention { n_kv_heads: 4, d_head: 8 }];
/// let config = TransformerConfig { mixers, norm: NormKind::Rms, ..TransformerConfig::new(2, 32, 4, 100, 32) };
/// assert_eq!((config.attends(0), config.gated_delta_of(0)), (false, Some(net)));
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], ["blocks.0.linear_attn.hook_{q,v,beta}", "blocks.1.attn.hook_pattern"])?;
/// assert_eq!(cache.get::<4>("blocks.0.linear_attn.hook_q")?.dims(), [1, 3, 2, 8]);
/// assert_eq!(cache.get::<4>("blocks.0.linear_attn.hook_v")?.dims(), [1, 3, 4, 6]);
/// assert_eq!(cache.get::<3>("blocks.0.linear_attn.hook_beta")?.dims(), [1, 3, 4]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub n_key_heads: usize,
    /// Heads of values, each with a memory of its own; a multiple of the keys'.
    pub n_value_heads: usize,
    /// Width of a query and of a key.
    pub d_key: usize,
    /// Width of a value.
    pub d_value: usize,
    /// Positions that the convolution sees, its own included; two at least.
    pub width: usize,
}

impl GatedDelta {
    /// Channels of the convolution: queries, keys and values of all heads.
    pub fn channels(self) -> usize {
        2 * self.n_key_heads * self.d_key + self.n_value_heads * self.d_value
    }
}
