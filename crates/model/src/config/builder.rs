//! Builder methods of [`TransformerConfig`].

use super::{
    ActivationFn, AttentionConfig, AttnExperts, ConfigError, Experts, Latent, LayerConfig, LayerRotary, MixerConfig,
    MlpConfig, NormKind, PerLayerInputs, Positional, QkNorm, QueryGrowth, ResidualScheme, Rotary, TransformerConfig,
    Window,
};

/// Methods that set a field.
macro_rules! setters {
    ($($name:ident $field:ident: $given:ty;)*) => {
        impl TransformerConfig {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $name(mut self, $field: $given) -> Self {
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}

setters! {
    with_d_model d_model: usize;
    with_heads n_heads: usize;
    with_d_vocab_out d_vocab_out: usize;
    with_n_ctx n_ctx: usize;
    with_norm norm: NormKind;
    with_eps eps: f64;
    with_final_eps final_eps: impl Into<Option<f64>>;
    with_final_rms final_rms: bool;
    with_post_embedding_norm post_embedding_norm: bool;
    with_embed_scale embed_scale: impl Into<Option<f64>>;
    with_pre_norms pre_norms: bool;
    with_post_norms post_norms: bool;
    with_residual residual: ResidualScheme;
    with_no_final_norm no_final_norm: bool;
    with_qk_norm qk_norm: impl Into<Option<QkNorm>>;
    with_alibi_bias_max alibi_bias_max: f64;
    with_qkv_clip qkv_clip: impl Into<Option<f64>>;
    with_query_growth query_growth: impl Into<Option<QueryGrowth>>;
    with_attn_sinks attn_sinks: bool;
    with_attn_gates attn_gates: bool;
    with_attn_experts attn_experts: impl Into<Option<AttnExperts>>;
    with_latent latent: impl Into<Option<Latent>>;
    with_most_keys most_keys: impl Into<Option<usize>>;
    with_positional positional: Positional;
    with_activation activation: ActivationFn;
    with_attn_scale attn_scale: f64;
    with_scale_attn_by_inverse_layer_idx scale_attn_by_inverse_layer_idx: bool;
    with_attn_scores_soft_cap attn_scores_soft_cap: impl Into<Option<f64>>;
    with_output_logits_soft_cap output_logits_soft_cap: impl Into<Option<f64>>;
    with_bidirectional bidirectional: bool;
    with_per_layer_inputs per_layer_inputs: impl Into<Option<PerLayerInputs>>;
    with_layer_scalars layer_scalars: bool;
    with_default_prepend_bos default_prepend_bos: bool;
}

/// Settings of all layers.
impl TransformerConfig {
    /// Sets rotary positions: [`Positional::Rotary`].
    #[must_use]
    pub fn with_rotary(self, rotary: Rotary) -> Self {
        self.with_positional(Positional::Rotary(rotary))
    }

    /// Sets the number of key/value heads of all layers with attention.
    #[must_use]
    pub fn with_kv_heads(self, n_kv_heads: usize) -> Self {
        self.each_attention(|own| own.n_kv_heads = n_kv_heads)
    }

    /// Sets the width of a head in all layers with attention. Does not change
    /// [`attn_scale`](TransformerConfig::attn_scale).
    #[must_use]
    pub fn with_d_head(self, d_head: usize) -> Self {
        self.each_attention(|own| own.d_head = d_head)
    }

    /// Sets the number of neurons of all MLPs, and of each expert.
    ///
    /// ```
    /// use hooklens::{MlpConfig, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_d_mlp(96).with_gated_mlp(true);
    /// assert_eq!(config.layers[1].mlp, MlpConfig::Gated { d_mlp: 96 });
    /// ```
    #[must_use]
    pub fn with_d_mlp(self, d_mlp: usize) -> Self {
        self.each_layer(|own| own.mlp = own.mlp.with_d_mlp(d_mlp))
    }

    /// Sets whether MLPs and experts are gated.
    #[must_use]
    pub fn with_gated_mlp(self, gated: bool) -> Self {
        self.each_layer(|own| own.mlp = own.mlp.with_gate(gated))
    }

    /// Turns all MLPs into mixtures of experts of the same width and with the same gate, or back with `None`.
    ///
    /// ```
    /// use hooklens::{Experts, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_gated_mlp(true).with_experts(Experts::new(8, 2));
    /// config.validate()?;
    /// assert!(config.experts_of(1).is_some() && config.is_gated(1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn with_experts(self, experts: impl Into<Option<Experts>>) -> Self {
        let experts = experts.into();
        self.each_layer(|own| own.mlp = own.mlp.with_experts(experts))
    }

    /// Removes the MLPs if `attn_only`.
    #[must_use]
    pub fn with_attn_only(self, attn_only: bool) -> Self {
        if attn_only { self.each_layer(|own| own.mlp = MlpConfig::None) } else { self }
    }

    fn each_layer(mut self, change: impl FnMut(&mut LayerConfig)) -> Self {
        self.layers.iter_mut().for_each(change);
        self
    }

    fn each_attention(self, mut change: impl FnMut(&mut AttentionConfig)) -> Self {
        self.each_layer(|own| own.mixer.attention_mut().into_iter().for_each(&mut change))
    }
}

/// Settings that differ between layers, as lists with one value per layer.
impl TransformerConfig {
    /// Sets the token mixer of each layer.
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`] if the list has another length.
    pub fn with_mixers(self, mixers: impl IntoIterator<Item = MixerConfig>) -> Result<Self, ConfigError> {
        self.each_of("mixers", mixers, |own, mixer| own.mixer = mixer)
    }

    /// Sets the MLP of each layer.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers).
    pub fn with_mlps(self, mlps: impl IntoIterator<Item = MlpConfig>) -> Result<Self, ConfigError> {
        self.each_of("mlps", mlps, |own, mlp| own.mlp = mlp)
    }

    /// Sets the attention window of each layer; an empty list removes all windows. Windows of layers without
    /// attention are ignored.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers).
    pub fn with_windows(self, windows: impl IntoIterator<Item = Option<Window>>) -> Result<Self, ConfigError> {
        let windows: Vec<_> = windows.into_iter().collect();
        let none = self.each_attention(|own| own.window = None);
        if windows.is_empty() {
            return Ok(none);
        }
        none.each_of("windows", windows, |own, window| {
            own.mixer.attention_mut().into_iter().for_each(|own| own.window = window);
        })
    }

    /// Sets the rotary embeddings of each layer, `None` for layers without any; an empty list restores the model's.
    /// Values for layers without attention are ignored.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers), and if the model's positions are not rotary.
    pub fn with_layer_rotary(self, rotary: impl IntoIterator<Item = Option<Rotary>>) -> Result<Self, ConfigError> {
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
            return ConfigError::refuse("layer_rotary", "only rotary positions can differ between layers".into());
        }
        Ok(config)
    }

    /// Sets, for each layer, the earlier layer whose keys and values it reuses, or `None` if it has its own; with an
    /// empty list, every layer has its own.
    ///
    /// # Errors
    /// Same as [`with_mixers`](Self::with_mixers), and for a layer without attention that would reuse keys.
    pub fn with_shared_keys(self, from: impl IntoIterator<Item = Option<usize>>) -> Result<Self, ConfigError> {
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

    fn each_of<T>(
        mut self,
        field: &'static str,
        values: impl IntoIterator<Item = T>,
        mut set: impl FnMut(&mut LayerConfig, T),
    ) -> Result<Self, ConfigError> {
        let values: Vec<T> = values.into_iter().collect();
        if values.len() != self.n_layers() {
            let reason = format!("{} entries for {} layers", values.len(), self.n_layers());
            return ConfigError::refuse(field, reason);
        }
        self.layers.iter_mut().zip(values).for_each(|(own, value)| set(own, value));
        Ok(self)
    }
}
