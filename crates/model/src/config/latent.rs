//! Multi-head latent attention settings.

use serde::{Deserialize, Serialize};

/// Multi-head latent attention: keys and values are projected from a low-rank latent, and in larger models queries from
/// another (DeepSeek V2).
///
/// Queries and keys are `d_head` wide per head: first the part projected from the latents, then `d_rope` rotated
/// dimensions, which all heads share for keys. Values are `d_value` wide.
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
    /// Width of the query latent (`q_lora_rank`). Without one, queries are projected from the residual stream.
    pub q_rank: Option<usize>,
    /// Width of the key/value latent (`kv_lora_rank`).
    pub kv_rank: usize,
    /// Number of rotated dimensions of a query or key, at its end.
    pub d_rope: usize,
    /// Width of a head's values.
    pub d_value: usize,
    /// Epsilon of the latents' RMS norms.
    pub eps: f64,
}
