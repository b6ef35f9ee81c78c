//! Multi-head latent attention settings.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, ConfigError, Positional, TransformerConfig};

/// Multi-head latent attention: keys and values are projected from a low-rank latent, and in larger models, queries
/// from another latent (DeepSeek V2).
///
/// Queries and keys are `d_head` wide per head: first the part projected from the latents, then `d_rope` rotated
/// dimensions. The rotated dimensions of keys are shared by all heads. Values are `d_value` wide.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{NormKind, RopeScaling, Rotary};
/// use hooklens_model::config::{Latent, Settings};
/// let rotary = Rotary { dim: 4, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_positional(rotary).with_norm(NormKind::Rms).with_latent(Latent { q_rank: Some(12), kv_rank: 10, d_rope: 4, d_value: 6, eps: 1e-6 });
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
    /// Number of rotated dimensions at the end of each query or key.
    pub d_rope: usize,
    /// Width of a head's values.
    pub d_value: usize,
    /// Epsilon of the latents' RMS norms.
    pub eps: f64,
}

impl Latent {
    /// Checks the sizes against the model's other settings.
    pub(super) fn check(self, config: &TransformerConfig) -> Result<(), ConfigError> {
        let Self { q_rank, kv_rank, d_rope, d_value, eps } = self;
        let valid = 1..=TransformerConfig::LARGEST;
        // Without query latents, 1 stands for a valid size.
        let sizes = [("kv_rank", kv_rank), ("q_rank", q_rank.unwrap_or(1)), ("d_rope", d_rope), ("d_value", d_value)];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| !valid.contains(size)) {
            return ConfigError::refuse("latent", format!("`{name}` is {size}; expected 1 to 2^28"));
        }
        if !(eps.is_finite() && eps >= 0.0) {
            return ConfigError::refuse("latent", format!("`eps` is {eps}; it must be finite and non-negative"));
        }
        let whole = AttentionConfig::new(config.n_heads, config.d_head());
        for layer in &config.layers {
            let own = layer.mixer.attention();
            if own.is_none_or(|own| *own != AttentionConfig { window: own.window, ..whole.clone() }) {
                let reason = "every layer must have attention with the same heads, and `n_kv_heads` equal to `n_heads`";
                return ConfigError::refuse("latent", reason.into());
            }
        }
        let rotates = matches!(&config.positional, Positional::Rotary(rotary) if rotary.dim == d_rope);
        if !rotates || d_rope >= config.d_head() {
            let d_head = config.d_head();
            let reason = format!(
                "every layer must rotate {d_rope} dimensions, and `d_head` ({d_head}) must be larger than that"
            );
            return ConfigError::refuse("latent", reason);
        }
        if config.qk_norm.is_some() {
            return ConfigError::refuse("latent", "latent attention can't be combined with `qk_norm`".into());
        }
        Ok(())
    }
}
