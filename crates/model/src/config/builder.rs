//! Builder methods of [`TransformerConfig`].

use super::{
    ActivationFn, AttentionConfig, ConfigError, Experts, GatedDelta, LayerConfig, Layers, MixerConfig, MlpConfig,
    NormKind, Positional, ResidualScheme, ShortConv, StateSpace, TransformerConfig, Window,
};

/// Declares methods that set a field.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident $field:ident: $given:ty;)*) => {
        impl TransformerConfig {
            $(
                $(#[$doc])*
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
    /// Sets the size of the last axis of the logits, if it is not the vocabulary size; 0 for no unembedding.
    with_d_vocab_out d_vocab_out: usize;
    /// Sets the norm before attention, the MLP, and the unembedding.
    with_norm norm: NormKind;
    /// Sets the epsilon added to the variance (or mean square) inside a norm.
    with_eps eps: f64;
    /// Sets whether the outputs of attention and the MLP are normalized (Gemma 2).
    with_post_norms post_norms: bool;
    /// Sets how blocks add to the residual stream.
    with_residual residual: ResidualScheme;
    /// Sets the positional embedding. Also accepts a [`Rotary`](super::Rotary).
    with_positional positional: impl Into<Positional>;
    /// Sets the MLP's activation function.
    with_activation activation: ActivationFn;
    /// Sets the divisor of attention scores; usually the square root of `d_head`, and 1 for unscaled scores.
    with_attn_scale attn_scale: f64;
    /// Sets a soft cap on attention scores, `cap * tanh(score / cap)`.
    with_attn_scores_soft_cap attn_scores_soft_cap: impl Into<Option<f64>>;
    /// Sets a soft cap on logits, `cap * tanh(logit / cap)`.
    with_output_logits_soft_cap output_logits_soft_cap: impl Into<Option<f64>>;
    /// Sets whether queries also attend to later keys.
    with_bidirectional bidirectional: bool;
    /// Sets whether a beginning-of-sequence token is prepended to text by default.
    with_default_prepend_bos default_prepend_bos: bool;
}

/// Settings of all layers.
impl TransformerConfig {
    /// Sets the number of key/value heads of all layers with attention.
    #[must_use]
    pub fn with_kv_heads(self, n_kv_heads: usize) -> Self {
        self.each_attention(|own| own.n_kv_heads = n_kv_heads)
    }

    /// Sets the width of a head in all layers with attention. Does not change
    /// [the divisor of scores](TransformerConfig::with_attn_scale).
    #[must_use]
    pub fn with_d_head(self, d_head: usize) -> Self {
        self.each_attention(|own| own.d_head = d_head)
    }

    /// Sets the number of neurons of all MLPs, and of each expert.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_d_mlp(96).with_gated_mlp(true);
    /// assert_eq!(config.d_mlp(), 96);
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

    /// Turns all MLPs into mixtures of `count` experts, each as wide as the MLP, and gated if the MLP is. A softmax
    /// router chooses `per_token` of them and renormalizes their weights to sum to one (Mixtral).
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_gated_mlp(true).with_experts(8, 2);
    /// config.validate()?;
    /// assert_eq!(config.n_experts(), 8);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn with_experts(self, count: usize, per_token: usize) -> Self {
        self.with_mixture(Experts::new(count, per_token))
    }

    /// Removes all MLPs if `attn_only` is true.
    #[must_use]
    pub fn with_attn_only(self, attn_only: bool) -> Self {
        if attn_only { self.each_layer(|own| own.mlp = MlpConfig::None) } else { self }
    }

    pub(super) fn each_layer(mut self, change: impl FnMut(&mut LayerConfig)) -> Self {
        self.layers.iter_mut().for_each(change);
        self
    }

    pub(super) fn each_attention(self, mut change: impl FnMut(&mut AttentionConfig)) -> Self {
        self.each_layer(|own| own.mixer.attention_mut().into_iter().for_each(&mut change))
    }
}

/// Settings that differ between layers.
impl TransformerConfig {
    /// Sets the attention window of each layer; an empty list removes all windows. Windows of layers without
    /// attention are ignored.
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`] if the list does not have one entry per layer.
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

    /// Replaces attention in these layers with Mamba 2: `n_heads` heads of width `d_head`, each with a state of
    /// `d_head` by `d_state` (Dao and Gu 2024).
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::NormKind;
    /// let config = TransformerConfig::new(2, 32, 4, 100, 32).with_norm(NormKind::Rms).with_mamba2([0], 4, 8, 6)?;
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], "blocks.0.ssm.hook_{x,b,dt}")?;
    /// assert_eq!(cache.get::<4>("blocks.0.ssm.hook_x")?.dims(), [1, 3, 4, 8]);
    /// assert_eq!(cache.get::<4>("blocks.0.ssm.hook_b")?.dims(), [1, 3, 1, 6]);
    /// assert_eq!(cache.get::<3>("blocks.0.ssm.hook_dt")?.dims(), [1, 3, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`] if one of the layers does not exist.
    pub fn with_mamba2(
        self,
        layers: impl IntoIterator<Item = usize>,
        n_heads: usize,
        d_head: usize,
        d_state: usize,
    ) -> Result<Self, ConfigError> {
        self.with_mixer(layers, &MixerConfig::Mamba2(StateSpace::new(n_heads, d_head, d_state)))
    }

    /// Replaces attention in these layers with a gated delta net (Yang et al. 2024; Qwen 3 Next): `heads` holds the
    /// numbers of key heads and value heads, and `widths` their widths.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::NormKind;
    /// let config =
    ///     TransformerConfig::new(2, 32, 4, 100, 32).with_norm(NormKind::Rms).with_gated_delta_net([0], [2, 4], [8, 6])?;
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], ["blocks.0.linear_attn.hook_{q,v,beta}", "blocks.1.attn.hook_pattern"])?;
    /// assert_eq!(cache.get::<4>("blocks.0.linear_attn.hook_q")?.dims(), [1, 3, 2, 8]);
    /// assert_eq!(cache.get::<4>("blocks.0.linear_attn.hook_v")?.dims(), [1, 3, 4, 6]);
    /// assert_eq!(cache.get::<3>("blocks.0.linear_attn.hook_beta")?.dims(), [1, 3, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`with_mamba2`](Self::with_mamba2).
    pub fn with_gated_delta_net(
        self,
        layers: impl IntoIterator<Item = usize>,
        heads: [usize; 2],
        widths: [usize; 2],
    ) -> Result<Self, ConfigError> {
        let ([n_key_heads, n_value_heads], [d_key, d_value]) = (heads, widths);
        let net = GatedDelta { n_key_heads, n_value_heads, d_key, d_value, width: 4 };
        self.with_mixer(layers, &MixerConfig::GatedDeltaNet(net))
    }

    /// Replaces attention in these layers with a gated short convolution over `width` positions (LFM2).
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::NormKind;
    /// let config = TransformerConfig::new(2, 32, 4, 100, 32).with_norm(NormKind::Rms).with_short_convolution([0], 3)?;
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], "blocks.0.conv.hook_{b,c,x,z}")?;
    /// assert_eq!(cache.get::<3>("blocks.0.conv.hook_b")?.dims(), [1, 3, 32]);
    /// assert_eq!(cache.get::<4>("blocks.0.conv.hook_z")?.dims(), [1, 3, 1, 32]); // stored as a single head
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`with_mamba2`](Self::with_mamba2).
    pub fn with_short_convolution(
        self,
        layers: impl IntoIterator<Item = usize>,
        width: usize,
    ) -> Result<Self, ConfigError> {
        self.with_mixer(layers, &MixerConfig::ShortConvolution(ShortConv { width }))
    }

    fn with_mixer(mut self, layers: impl IntoIterator<Item = usize>, mixer: &MixerConfig) -> Result<Self, ConfigError> {
        let n_layers = self.n_layers();
        for layer in layers {
            let Some(own) = self.layers.get_mut(layer) else {
                return ConfigError::refuse("mixers", format!("no layer {layer}: the model has {n_layers} layers"));
            };
            own.mixer = mixer.clone();
        }
        Ok(self)
    }

    pub(super) fn each_of<T>(
        mut self,
        field: &'static str,
        values: impl IntoIterator<Item = T>,
        mut set: impl FnMut(&mut LayerConfig, T),
    ) -> Result<Self, ConfigError> {
        let values: Vec<T> = values.into_iter().collect();
        if values.len() != self.n_layers() {
            let reason = format!("the list has {} entries, but the model has {} layers", values.len(), self.n_layers());
            return ConfigError::refuse(field, reason);
        }
        self.layers.iter_mut().zip(values).for_each(|(own, value)| set(own, value));
        Ok(self)
    }
}
