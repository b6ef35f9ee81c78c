//! Gated delta net settings.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::mixer::check_sizes;

/// Sizes of a gated delta net, linear attention that keeps one state matrix per head instead of keys and values (Yang
/// et al. 2024; Qwen 3 Next, Qwen 3.5).
///
/// At each position, a head decays its state `S` (`[d_key, d_value]`), moves the value stored for the key toward the
/// new value by a factor `beta`, and reads the state with the query: `S = exp(g) S; S += beta kᵀ (v - k S); o = q S`.
/// Queries, keys, and values first pass through a causal convolution over `width` positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDelta {
    /// Number of query/key heads.
    pub n_key_heads: usize,
    /// Number of value heads, each with its own state. A multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Width of queries and keys.
    pub d_key: usize,
    /// Width of values.
    pub d_value: usize,
    /// Kernel width of the convolution, including the current position; at least two.
    pub width: usize,
}

impl GatedDelta {
    /// Number of convolution channels: queries, keys, and values of all heads.
    pub fn channels(self) -> usize {
        2 * self.n_key_heads * self.d_key + self.n_value_heads * self.d_value
    }

    /// Checks the sizes for the mixer of layer `layer`.
    pub(super) fn check(self, layer: usize) -> Result<(), ConfigError> {
        let Self { n_key_heads, n_value_heads, d_key, d_value, width } = self;
        check_sizes("gated delta net", layer, &[n_key_heads, n_value_heads, d_key, d_value], width)?;
        if !n_value_heads.is_multiple_of(n_key_heads) {
            let reason = format!(
                "{n_value_heads} value heads of layer {layer} can't be divided evenly among {n_key_heads} key heads"
            );
            return ConfigError::refuse("mixers", reason);
        }
        Ok(())
    }
}
