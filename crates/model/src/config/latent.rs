//! Latent attention.

use serde::{Deserialize, Serialize};

/// Attention whose keys and values are made from a narrow latent of the stream, and in larger models queries from
/// another (DeepSeek V2).
///
/// A head's queries and keys are `d_head` wide: what comes from the latents, then `d_rope` rotated coordinates, in
/// which the keys of all heads are the same. Values are `d_value` wide.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Latent, NormKind, Positional, RopeScaling, Rotary};
/// let rotary = Rotary { dim: 4, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
/// let config = TransformerConfig {
///     norm: NormKind::Rms,
///     positional: Positional::Rotary(rotary),
///     latent: Some(Latent { q_rank: Some(12), kv_rank: 10, d_rope: 4, d_value: 6, eps: 1e-6 }),
///     ..TransformerConfig::new(1, 16, 2, 20, 8)
/// };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], ["blocks.0.attn.hook_kv_latent", "k0", "v0"])?;
/// assert_eq!(cache.get(hook::kv_latent(0))?.dims(), [1, 3, 10]);
/// assert_eq!((cache.get(hook::k(0))?.dims(), cache.get(hook::v(0))?.dims()), ([1, 3, 2, 8], [1, 3, 2, 6]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latent {
    /// Width of the queries' latent; without, queries are made from the stream.
    pub q_rank: Option<usize>,
    /// Width of the latent of keys and values.
    pub kv_rank: usize,
    /// Rotated coordinates of a query or key, the last ones.
    pub d_rope: usize,
    /// Width of a head's values.
    pub d_value: usize,
    /// Added to the mean square inside the latents' norms.
    pub eps: f64,
}
