//! [`LayerConfig`]: the token mixer and the MLP of a layer.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, ConfigError, MixerConfig, MlpConfig, TransformerConfig};

/// One layer: a token mixer and an MLP, each of which reads the residual stream and adds its output to it.
///
/// ```
/// use hooklens::TransformerConfig;
/// use hooklens_model::config::{Layers, LayerConfig, MixerConfig, MlpConfig, StateSpace};
/// // As in Nemotron-H: a layer with only Mamba 2, then a layer with only an MLP.
/// let mut config = TransformerConfig::new(2, 64, 4, 100, 32);
/// *config.layers_mut() = vec![
///     LayerConfig::new(MixerConfig::Mamba2(StateSpace::new(4, 8, 6)), MlpConfig::None),
///     LayerConfig::new(MixerConfig::None, MlpConfig::Dense { d_mlp: 256 }),
/// ];
/// assert!(config.has_states() && !config.attends(0) && config.has_mlp(1));
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerConfig {
    /// The token mixer.
    pub mixer: MixerConfig,
    /// The MLP.
    pub mlp: MlpConfig,
}

impl LayerConfig {
    /// Creates a layer from a token mixer and an MLP.
    pub fn new(mixer: MixerConfig, mlp: MlpConfig) -> Self {
        Self { mixer, mlp }
    }

    /// Attention and a plain MLP, as in GPT-2.
    pub(super) fn plain(n_heads: usize, d_head: usize, d_mlp: usize) -> Self {
        Self::new(MixerConfig::Attention(AttentionConfig::new(n_heads, d_head)), MlpConfig::Dense { d_mlp })
    }

    /// Checks the mixer and the MLP. If one of them is `None`, also checks that the model's blocks support layers
    /// without it.
    pub(super) fn check(&self, config: &TransformerConfig, layer: usize) -> Result<(), ConfigError> {
        self.mixer.check(config, layer)?;
        self.mlp.check(config)?;
        let (mixes, has_mlp) = (self.mixer != MixerConfig::None, self.mlp != MlpConfig::None);
        if mixes && (has_mlp || config.attn_only()) {
            return Ok(());
        }
        if !mixes && !has_mlp {
            return ConfigError::refuse("mixers", format!("layer {layer} has neither a mixer nor an MLP"));
        }
        if config.is_plain_sequence() {
            return Ok(());
        }
        let reason = format!(
            "layer {layer} lacks a mixer or an MLP, which is supported only in sequential blocks without post-norms, \
             layer scalars, per-layer inputs or Shortformer positions"
        );
        ConfigError::refuse("mixers", reason)
    }
}
