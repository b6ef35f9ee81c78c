//! Attention settings of one layer.

use serde::{Deserialize, Serialize};

use super::{ConfigError, Layers, Rotary, TransformerConfig, Window};

/// Attention settings of one layer: key/value heads, window, and rotary embeddings. Settings shared by all layers,
/// such as `n_heads` and `attn_scale`, are fields of [`TransformerConfig`].
///
/// ```
/// use hooklens::Window;
/// use hooklens_model::config::AttentionConfig;
/// let own = AttentionConfig::new(2, 64).with_window(Window::Sliding(4096));
/// assert_eq!((own.n_kv_heads, own.d_head, own.window), (2, 64, Some(Window::Sliding(4096))));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttentionConfig {
    /// Number of key/value heads; fewer than `n_heads` means grouped-query attention.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Attention window; `None` for full attention.
    pub window: Option<Window>,
    /// Rotary embeddings of the layer, in a model with rotary positions.
    pub rotary: LayerRotary,
    /// The earlier layer whose keys and values are reused, if any (Gemma 4).
    pub keys_of: Option<usize>,
}

/// Rotary embeddings of one layer, in a model with [`Positional::Rotary`](super::Positional::Rotary).
///
/// ```
/// use hooklens::{RopeScaling, Rotary, TransformerConfig};
/// use hooklens_model::config::{Layers, LayerRotary};
/// let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
/// let mut config = TransformerConfig::new(2, 64, 4, 100, 32).with_positional(rotary.clone());
/// if let Some(attention) = config.layers_mut()[1].mixer.attention_mut() {
///     attention.rotary = LayerRotary::None; // as in SmolLM 3
/// }
/// assert_eq!((config.rotary(0), config.rotary(1)), (Some(&rotary), None));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LayerRotary {
    /// The model's rotary embeddings.
    #[default]
    Model,
    /// The layer's own rotary embeddings (Gemma 3).
    Own(Rotary),
    /// No rotary embeddings: queries and keys do not encode positions (SmolLM 3).
    None,
}

impl AttentionConfig {
    /// Creates full attention with the model's rotary embeddings.
    pub fn new(n_kv_heads: usize, d_head: usize) -> Self {
        Self { n_kv_heads, d_head, window: None, rotary: LayerRotary::Model, keys_of: None }
    }

    /// Sets the window.
    #[must_use]
    pub fn with_window(self, window: impl Into<Option<Window>>) -> Self {
        Self { window: window.into(), ..self }
    }

    /// Sets the rotary embeddings.
    #[must_use]
    pub fn with_rotary(self, rotary: LayerRotary) -> Self {
        Self { rotary, ..self }
    }

    /// Checks the sizes for attention in layer `layer`.
    pub(super) fn check(&self, config: &TransformerConfig, layer: usize) -> Result<(), ConfigError> {
        let Self { n_kv_heads, d_head, window, .. } = *self;
        if n_kv_heads == 0 || !config.n_heads.is_multiple_of(n_kv_heads) {
            let heads = config.n_heads;
            return ConfigError::refuse(
                "n_kv_heads",
                format!("{heads} heads of layer {layer} can't be divided evenly among {n_kv_heads} key/value heads"),
            );
        }
        if !(1..=TransformerConfig::LARGEST).contains(&d_head) {
            let reason = format!("the heads of layer {layer} have width {d_head}; expected 1 to 2^28");
            return ConfigError::refuse("d_head", reason);
        }
        if let Some(rotary) = config.rotary(layer) {
            rotary.check(d_head)?;
        }
        match window {
            Some(window) if window.width() == 0 => {
                ConfigError::refuse("windows", format!("layer {layer} has a window of 0, which covers no position"))
            }
            Some(Window::Chunked(_)) if config.bidirectional => {
                ConfigError::refuse("windows", "chunked windows require causal attention".into())
            }
            Some(Window::Around(_)) if !config.bidirectional => {
                ConfigError::refuse("windows", "two-sided windows require bidirectional attention".into())
            }
            _ => self.check_keys(config, layer),
        }
    }

    /// Checks the layer whose keys and values are reused, if any.
    fn check_keys(&self, config: &TransformerConfig, layer: usize) -> Result<(), ConfigError> {
        let Some(from) = self.keys_of else { return Ok(()) };
        let other = config.layers.get(from).filter(|_| from < layer).and_then(|other| other.mixer.attention());
        let Some(other) = other.filter(|other| other.keys_of.is_none()) else {
            let reason = format!(
                "layer {layer} can't reuse the keys of layer {from}, which must be earlier and have its own keys"
            );
            return ConfigError::refuse("shared_keys", reason);
        };
        let heads = |own: &Self, of| (own.n_kv_heads, own.d_head, own.window, config.rotary(of).cloned());
        if heads(self, layer) != heads(other, from) {
            let reason =
                format!("layers {layer} and {from} can't share keys: their heads, windows or rotary embeddings differ");
            return ConfigError::refuse("shared_keys", reason);
        }
        if config.latent.is_some() || config.bidirectional {
            let reason = "keys can't be shared in bidirectional or latent attention";
            return ConfigError::refuse("shared_keys", reason.into());
        }
        Ok(())
    }
}
