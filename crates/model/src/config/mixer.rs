//! The token mixer of a layer.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, ConfigError, GatedDelta, ShortConv, StateSpace, TransformerConfig};

/// The part of a layer that moves information between positions.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens_model::config::{Layers, AttentionConfig, MixerConfig};
/// // The second layer's heads are twice as wide, and share one head of keys and values.
/// let mixers = [AttentionConfig::new(2, 8), AttentionConfig::new(1, 16)].map(MixerConfig::Attention);
/// let config = TransformerConfig::new(2, 32, 4, 100, 32).with_mixers(mixers)?;
/// assert_eq!((config.n_kv_heads_of(1), config.d_head_of(1)), (1, 16));
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], ["q1", "k1"])?;
/// assert_eq!((cache.get(hook::q(1))?.dims(), cache.get(hook::k(1))?.dims()), ([1, 3, 4, 16], [1, 3, 1, 16]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MixerConfig {
    /// Attention.
    Attention(AttentionConfig),
    /// A gated delta net. It has no attention pattern, and its cache is a state matrix.
    GatedDeltaNet(GatedDelta),
    /// A Mamba 2 state space. It has no attention pattern, and its cache is a state matrix.
    Mamba2(StateSpace),
    /// A gated short convolution, which caches its inputs at the last positions (LFM2).
    ShortConvolution(ShortConv),
    /// Attention and a Mamba 2 state space that read the same normalized stream, and whose outputs are added
    /// (Falcon-H1). The layer caches keys and values as well as a state.
    AttentionAndMamba2(AttentionConfig, StateSpace),
    /// No mixer: the layer has only an MLP (Nemotron-H).
    None,
}

impl MixerConfig {
    /// The attention settings, if the mixer includes attention.
    ///
    /// ```
    /// use hooklens_model::config::{AttentionConfig, MixerConfig, StateSpace};
    /// let own = AttentionConfig::new(2, 8);
    /// assert_eq!(MixerConfig::AttentionAndMamba2(own.clone(), StateSpace::new(4, 8, 6)).attention(), Some(&own));
    /// assert_eq!(MixerConfig::None.attention(), None);
    /// ```
    pub fn attention(&self) -> Option<&AttentionConfig> {
        match self {
            Self::Attention(own) | Self::AttentionAndMamba2(own, _) => Some(own),
            Self::GatedDeltaNet(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// The attention settings, mutably, if the mixer includes attention.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionConfig> {
        match self {
            Self::Attention(own) | Self::AttentionAndMamba2(own, _) => Some(own),
            Self::GatedDeltaNet(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// Whether the mixer has a recurrent state.
    pub fn has_state(&self) -> bool {
        !matches!(self, Self::Attention(_) | Self::None)
    }

    /// Checks the sizes for the mixer of layer `layer`.
    pub(super) fn check(&self, config: &TransformerConfig, layer: usize) -> Result<(), ConfigError> {
        match self {
            Self::Attention(own) => own.check(config, layer),
            Self::GatedDeltaNet(own) => own.check(layer),
            Self::Mamba2(own) => own.check(layer),
            Self::ShortConvolution(own) => own.check(layer),
            Self::AttentionAndMamba2(own, space) => own.check(config, layer).and_then(|()| space.check(layer)),
            Self::None => Ok(()),
        }
    }
}

/// Checks the sizes of a mixer with a convolution over `width` positions.
pub(super) fn check_sizes(kind: &str, layer: usize, sizes: &[usize], width: usize) -> Result<(), ConfigError> {
    let valid = 1..=TransformerConfig::LARGEST;
    if let Some(size) = sizes.iter().chain([&width]).find(|size| !valid.contains(size)) {
        return ConfigError::refuse("mixers", format!("layer {layer}'s {kind} has size {size}; expected 1 to 2^28"));
    }
    if width < 2 {
        let reason = format!("the convolution of layer {layer} must cover at least two positions");
        return ConfigError::refuse("mixers", reason);
    }
    Ok(())
}
