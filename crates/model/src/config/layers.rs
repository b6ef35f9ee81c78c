//! [`Layers`]: the layers of a configuration, and values derived from its settings.

use super::growing_rotation::Threshold;
use super::{
    ConfigError, Experts, LayerConfig, LayerRotary, MixerConfig, MlpConfig, NormKind, Positional, QkNorm, QueryGrowth,
    ResidualScheme, RopeScaling, Rotary, StateSpace, TransformerConfig,
};

/// The layers of a [`TransformerConfig`], and values derived from its settings. This trait is for the crates of the
/// workspace; users read sizes with the methods of [`TransformerConfig`].
pub trait Layers: Sized {
    /// The layers, first to last.
    fn layers(&self) -> &[LayerConfig];

    /// The layers, mutably.
    fn layers_mut(&mut self) -> &mut Vec<LayerConfig>;

    /// The mixture of experts of the first layer that has one.
    fn experts(&self) -> Option<Experts>;

    /// Divisor of a layer's attention scores.
    fn score_divisor(&self, layer: usize) -> f64;

    /// Rotary embeddings of a layer, if any.
    fn rotary(&self, layer: usize) -> Option<&Rotary>;

    /// Query and key norms of a layer, if any.
    fn qk_norm_of(&self, layer: usize) -> Option<QkNorm>;

    /// Position-dependent query scaling of a layer, if any.
    fn query_growth_of(&self, layer: usize) -> Option<QueryGrowth>;

    /// The Mamba 2 state space that a layer has in place of attention or beside it, if any.
    fn state_space_of(&self, layer: usize) -> Option<StateSpace>;

    /// Whether layer `layer` has attention.
    fn attends(&self, layer: usize) -> bool;

    /// Whether any layer has a recurrent state.
    fn has_states(&self) -> bool;

    /// Whether layer `layer` has a token mixer.
    fn mixes(&self, layer: usize) -> bool;

    /// Whether layer `layer` has an MLP or a mixture of experts.
    fn has_mlp(&self, layer: usize) -> bool;

    /// The layers that have an MLP or a mixture of experts.
    fn mlp_layers(&self) -> impl Iterator<Item = usize>;

    /// The layers that have attention.
    fn attending(&self) -> impl Iterator<Item = usize>;

    /// The earlier layer whose keys and values layer `layer` reuses, if any.
    fn reads_keys_of(&self, layer: usize) -> Option<usize>;

    /// Whether any layer reuses the keys and values of an earlier one.
    fn shares_keys(&self) -> bool;

    /// Number of key/value heads in a layer; 0 if it has no attention.
    fn n_kv_heads_of(&self, layer: usize) -> usize;

    /// Width of a layer's query and key heads; 0 if it has no attention.
    fn d_head_of(&self, layer: usize) -> usize;

    /// Width of a layer's value heads; equal to the width of its key heads, except in latent attention.
    fn d_value_of(&self, layer: usize) -> usize;

    /// Number of elements that a key-value cache holds per position, over all layers. Recurrent states are not counted,
    /// because their size does not depend on the number of positions.
    fn cached_elements(&self) -> usize;

    /// Maximum widths, over all layers, of key heads and of value heads.
    fn widest_heads(&self) -> [usize; 2];

    /// The mixture of experts of layer `layer`, if it has one.
    fn experts_of(&self, layer: usize) -> Option<Experts>;

    /// Whether a layer's MLP, or its experts, are gated: the activation is multiplied by a second projection.
    fn is_gated(&self, layer: usize) -> bool;

    /// Number of neurons in a layer's MLP, or in each of its experts.
    fn d_mlp_of(&self, layer: usize) -> usize;

    /// Norm applied to the inputs of attention and the MLP; with [`ResidualScheme::NormalizedSums`], to the sums.
    fn pre_norm(&self) -> NormKind;

    /// Norm applied to the input of a layer's token mixer; [`NormKind::None`] if it has no mixer.
    fn ln1_kind(&self, layer: usize) -> NormKind;

    /// Whether the residual stream is normalized between writes, so that it is not the plain sum of the outputs added
    /// to it.
    fn stream_is_normalized(&self) -> bool;

    /// Norm applied to the outputs of attention and the MLP. Its weights are never folded, because no linear map
    /// follows it.
    fn post_norm(&self) -> NormKind;

    /// The norm before the unembedding.
    fn final_norm(&self) -> NormKind;

    /// Context lengths beyond which the rotary frequencies of some layer change.
    fn rotation_thresholds(&self) -> Vec<Threshold>;

    /// Whether a text of this length uses different rotary frequencies than a short text.
    fn outgrows(&self, len: usize) -> bool;

    /// Turns each MLP into a mixture of experts with the MLP's width and gating; `None` turns mixtures back into MLPs.
    #[must_use]
    fn with_mixture(self, experts: impl Into<Option<Experts>>) -> Self;

    /// Sets the token mixer of each layer.
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`] if the list does not have one entry per layer.
    fn with_mixers(self, mixers: impl IntoIterator<Item = MixerConfig>) -> Result<Self, ConfigError>;

    /// Sets the MLP of each layer.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers).
    fn with_mlps(self, mlps: impl IntoIterator<Item = MlpConfig>) -> Result<Self, ConfigError>;

    /// Sets the rotary embeddings of each layer, `None` for layers without any; with an empty list, every layer uses
    /// the model's rotary embeddings. Values for layers without attention are ignored.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers); also fails if the model's positions are not rotary.
    fn with_layer_rotary(self, rotary: impl IntoIterator<Item = Option<Rotary>>) -> Result<Self, ConfigError>;

    /// Sets, for each layer, the earlier layer whose keys and values it reuses, or `None` if it has its own; with an
    /// empty list, every layer has its own keys and values.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers); also fails if a layer without attention would reuse keys.
    fn with_shared_keys(self, from: impl IntoIterator<Item = Option<usize>>) -> Result<Self, ConfigError>;
}

impl Layers for TransformerConfig {
    fn layers(&self) -> &[LayerConfig] {
        &self.layers
    }

    fn layers_mut(&mut self) -> &mut Vec<LayerConfig> {
        &mut self.layers
    }

    fn experts(&self) -> Option<Experts> {
        self.layers.iter().find_map(|layer| layer.mlp.experts())
    }

    fn score_divisor(&self, layer: usize) -> f64 {
        let by_layer = if self.scale_attn_by_inverse_layer_idx { (layer + 1) as f64 } else { 1.0 };
        self.attn_scale * by_layer
    }

    fn rotary(&self, layer: usize) -> Option<&Rotary> {
        let Positional::Rotary(all) = &self.positional else { return None };
        match &self.mixer(layer).attention()?.rotary {
            LayerRotary::Model => Some(all),
            LayerRotary::Own(own) => Some(own),
            LayerRotary::None => None,
        }
    }

    fn qk_norm_of(&self, layer: usize) -> Option<QkNorm> {
        self.qk_norm.filter(|norm| !norm.rotating_layers || self.rotary(layer).is_some())
    }

    fn query_growth_of(&self, layer: usize) -> Option<QueryGrowth> {
        self.query_growth.filter(|growth| !growth.still_layers || self.rotary(layer).is_none())
    }

    fn state_space_of(&self, layer: usize) -> Option<StateSpace> {
        match *self.mixer(layer) {
            MixerConfig::Mamba2(space) | MixerConfig::AttentionAndMamba2(_, space) => Some(space),
            _ => None,
        }
    }

    fn attends(&self, layer: usize) -> bool {
        self.mixer(layer).attention().is_some()
    }

    fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.has_state())
    }

    fn mixes(&self, layer: usize) -> bool {
        *self.mixer(layer) != MixerConfig::None
    }

    fn has_mlp(&self, layer: usize) -> bool {
        self.mlp(layer) != MlpConfig::None
    }

    fn mlp_layers(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers()).filter(|layer| self.has_mlp(*layer))
    }

    fn attending(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers()).filter(|layer| self.attends(*layer))
    }

    fn reads_keys_of(&self, layer: usize) -> Option<usize> {
        self.mixer(layer).attention()?.keys_of
    }

    fn shares_keys(&self) -> bool {
        self.attending().any(|layer| self.reads_keys_of(layer).is_some())
    }

    fn n_kv_heads_of(&self, layer: usize) -> usize {
        self.mixer(layer).attention().map_or(0, |own| own.n_kv_heads)
    }

    fn d_head_of(&self, layer: usize) -> usize {
        self.mixer(layer).attention().map_or(0, |own| own.d_head)
    }

    fn d_value_of(&self, layer: usize) -> usize {
        self.latent.map_or(self.d_head_of(layer), |latent| latent.d_value)
    }

    fn cached_elements(&self) -> usize {
        let own = |layer: &usize| self.reads_keys_of(*layer).is_none();
        let of_layer = |layer| self.n_kv_heads_of(layer).saturating_mul(self.d_head_of(layer) + self.d_value_of(layer));
        (0..self.n_layers()).filter(own).map(of_layer).fold(0, usize::saturating_add)
    }

    fn widest_heads(&self) -> [usize; 2] {
        let widest = |of: &dyn Fn(usize) -> usize| (0..self.n_layers()).map(of).max().unwrap_or(0);
        [widest(&|layer| self.d_head_of(layer)), widest(&|layer| self.d_value_of(layer))]
    }

    fn experts_of(&self, layer: usize) -> Option<Experts> {
        self.mlp(layer).experts()
    }

    fn is_gated(&self, layer: usize) -> bool {
        self.mlp(layer).is_gated()
    }

    fn d_mlp_of(&self, layer: usize) -> usize {
        self.mlp(layer).d_mlp()
    }

    fn pre_norm(&self) -> NormKind {
        if self.pre_norms { self.norm } else { NormKind::None }
    }

    fn ln1_kind(&self, layer: usize) -> NormKind {
        if self.mixes(layer) { self.pre_norm() } else { NormKind::None }
    }

    fn stream_is_normalized(&self) -> bool {
        matches!(self.residual, ResidualScheme::NormalizedSums | ResidualScheme::NormalizedInputs)
    }

    fn post_norm(&self) -> NormKind {
        match self.norm {
            NormKind::LayerNormPre => NormKind::LayerNorm,
            NormKind::RmsPre => NormKind::Rms,
            norm => norm,
        }
    }

    fn final_norm(&self) -> NormKind {
        match (self.final_rms, self.norm) {
            _ if self.no_final_norm => NormKind::None,
            (true, NormKind::LayerNorm) => NormKind::Rms,
            (true, NormKind::LayerNormPre) => NormKind::RmsPre,
            (_, norm) => norm,
        }
    }

    fn rotation_thresholds(&self) -> Vec<Threshold> {
        let rotaries = (0..self.n_layers()).filter_map(|layer| self.rotary(layer));
        let thresholds = rotaries.filter_map(|rotary| match rotary.scaling {
            RopeScaling::Long { original_context, .. } => Some(Threshold { context: original_context, once: true }),
            RopeScaling::Dynamic { original_context, .. } => Some(Threshold { context: original_context, once: false }),
            _ => None,
        });
        thresholds.collect()
    }

    fn outgrows(&self, len: usize) -> bool {
        self.rotation_thresholds().iter().any(|threshold| len > threshold.context)
    }

    fn with_mixture(self, experts: impl Into<Option<Experts>>) -> Self {
        let experts = experts.into();
        self.each_layer(|own| own.mlp = own.mlp.with_experts(experts))
    }

    fn with_mixers(self, mixers: impl IntoIterator<Item = MixerConfig>) -> Result<Self, ConfigError> {
        self.each_of("mixers", mixers, |own, mixer| own.mixer = mixer)
    }

    fn with_mlps(self, mlps: impl IntoIterator<Item = MlpConfig>) -> Result<Self, ConfigError> {
        self.each_of("mlps", mlps, |own, mlp| own.mlp = mlp)
    }

    fn with_layer_rotary(self, rotary: impl IntoIterator<Item = Option<Rotary>>) -> Result<Self, ConfigError> {
        let all = match &self.positional {
            Positional::Rotary(all) => Some(all.clone()),
            _ => None,
        };
        let rotary: Vec<_> = rotary.into_iter().collect();
        let same = self.each_attention(|own| own.rotary = LayerRotary::Model);
        if rotary.is_empty() {
            return Ok(same);
        }
        let config = same.each_of("layer_rotary", rotary, |own, rotary| {
            let rotary = match rotary {
                Some(own) if Some(&own) == all.as_ref() => LayerRotary::Model,
                Some(own) => LayerRotary::Own(own),
                None => LayerRotary::None,
            };
            own.mixer.attention_mut().into_iter().for_each(|own| own.rotary = rotary.clone());
        })?;
        if all.is_none() {
            return ConfigError::refuse("layer_rotary", "per-layer rotary embeddings require rotary positions".into());
        }
        Ok(config)
    }

    fn with_shared_keys(self, from: impl IntoIterator<Item = Option<usize>>) -> Result<Self, ConfigError> {
        let from: Vec<_> = from.into_iter().collect();
        let none = self.each_attention(|own| own.keys_of = None);
        if from.is_empty() {
            return Ok(none);
        }
        let mut without = None;
        let config = none.each_of("shared_keys", from, |own, from| match (own.mixer.attention_mut(), from) {
            (Some(own), from) => own.keys_of = from,
            (None, Some(from)) => without = without.or(Some(from)),
            (None, None) => {}
        })?;
        match without {
            Some(from) => {
                let reason = format!("a layer without attention can't reuse the keys of layer {from}");
                ConfigError::refuse("shared_keys", reason)
            }
            None => Ok(config),
        }
    }
}
