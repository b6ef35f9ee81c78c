//! Validation of configurations. Checks sizes, numbers and combinations of settings; settings with several fields are
//! checked by their own types.

use super::{ConfigError, Layers, NormKind, Positional, ResidualScheme, TransformerConfig};

/// Maximum number of layers. Guards allocations against nonsensical values.
pub const MOST_LAYERS: usize = 10_000;

impl TransformerConfig {
    /// Maximum value of a size: far larger than in any model, and small enough that the product of two sizes does not
    /// overflow.
    pub(super) const LARGEST: usize = 1 << 28;

    /// Checks that the sizes and choices are consistent.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_kv_heads(3);
    /// assert!(config.validate().unwrap_err().to_string().contains("n_kv_heads"));
    /// ```
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_sizes()?;
        self.check_numbers()?;
        for (layer, own) in self.layers.iter().enumerate() {
            own.check(self, layer)?;
        }
        self.latent.map_or(Ok(()), |latent| latent.check(self))?;
        self.attn_experts.map_or(Ok(()), |experts| experts.check(self))?;
        self.check_combinations()
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        if self.d_head() == 0 && self.n_heads > 0 && !self.d_model.is_multiple_of(self.n_heads) && self.attends(0) {
            let reason = format!("d_model ({}) is not divisible by n_heads ({})", self.d_model, self.n_heads);
            return ConfigError::refuse("n_heads", format!("{reason}; set d_head and attn_scale"));
        }
        let positive = [
            ("n_layers", self.n_layers()),
            ("d_model", self.d_model),
            ("n_heads", self.n_heads),
            ("d_vocab", self.d_vocab),
            ("d_vocab_out", self.d_vocab_out.max(1)),
            ("n_ctx", self.n_ctx),
        ];
        for (field, given) in positive {
            if given == 0 || given > Self::LARGEST {
                return Err(ConfigError::BadSize { field, given });
            }
        }
        if self.n_layers() > MOST_LAYERS {
            return Err(ConfigError::BadSize { field: "n_layers", given: self.n_layers() });
        }
        if let Some(own) = self.per_layer_inputs
            && (own.width == 0 || own.width.saturating_mul(self.n_layers()) > Self::LARGEST)
        {
            let reason = format!("width {} times {} layers is not within 1 to 2^28", own.width, self.n_layers());
            return ConfigError::refuse("per_layer_inputs", reason);
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        for (field, eps) in [("eps", Some(self.eps)), ("final_eps", self.final_eps)] {
            if let Some(eps) = eps.filter(|eps| !(eps.is_finite() && *eps >= 0.0)) {
                return ConfigError::refuse(field, format!("{eps} is not a finite, non-negative number"));
            }
        }
        if !(self.attn_scale.is_finite() && self.attn_scale > 0.0) {
            return ConfigError::refuse("attn_scale", format!("{} is not a positive number", self.attn_scale));
        }
        let positive = [
            ("attn_scores_soft_cap", self.attn_scores_soft_cap),
            ("output_logits_soft_cap", self.output_logits_soft_cap),
            ("qkv_clip", self.qkv_clip),
            ("alibi_bias_max", Some(self.alibi_bias_max)),
        ];
        for (field, number) in positive {
            if let Some(number) = number.filter(|number| !(number.is_finite() && *number > 0.0)) {
                return ConfigError::refuse(field, format!("{number} is not a positive number"));
            }
        }
        if let Some(scale) = self.embed_scale.filter(|scale| !scale.is_finite()) {
            return ConfigError::refuse("embed_scale", format!("{scale} is not a finite number"));
        }
        if let Some(growth) = self.query_growth.filter(|growth| !growth.rate.is_finite() || growth.context == 0) {
            let reason = format!("the rate must be finite and the context length positive (got {growth:?})");
            return ConfigError::refuse("query_growth", reason);
        }
        Ok(())
    }

    fn check_combinations(&self) -> Result<(), ConfigError> {
        let fails = |field, reason: &str| ConfigError::refuse(field, reason.into());
        if self.has_states() {
            let reason =
                "recurrent layers don't support bidirectional attention, Shortformer positions or a normalized stream";
            if self.bidirectional {
                return fails("bidirectional", reason);
            }
            if self.positional == Positional::Shortformer || self.stream_is_normalized() {
                return fails("mixers", reason);
            }
        }
        if self.positional == Positional::ScaledAlibi && self.scale_attn_by_inverse_layer_idx {
            return fails("positional", "scaled ALiBi can't be combined with `scale_attn_by_inverse_layer_idx`");
        }
        if self.positional == Positional::LearnedNormalized && !self.post_embedding_norm {
            return fails(
                "positional",
                "normalized position vectors require an embedding norm (`post_embedding_norm`)",
            );
        }
        if self.qk_norm.is_some_and(|norm| norm.kind == NormKind::None) {
            return fails("qk_norm", "the kind of norm must not be `None`");
        }
        let in_order = self.residual == ResidualScheme::Sequential && !self.attn_only();
        let after_mlps =
            "only sequential blocks with MLPs are supported (for `per_layer_inputs`, without an embedding norm)";
        if self.per_layer_inputs.is_some() && (!in_order || self.post_embedding_norm) {
            return fails("per_layer_inputs", after_mlps);
        }
        if self.layer_scalars && !in_order {
            return fails("layer_scalars", after_mlps);
        }
        if self.stream_is_normalized() && (!self.pre_norms || self.post_norms || self.attn_only()) {
            return fails("residual", "a normalized residual stream requires MLPs, pre-norms and no post-norms");
        }
        Ok(())
    }
}
