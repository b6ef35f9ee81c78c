//! Validation of configurations.

use super::{
    ActivationFn, AttnExperts, ConfigError, ExpertGroups, Mixer, NormKind, Positional, RouterFn, SharedExpert,
    StateSpace, TransformerConfig, Window,
};

impl TransformerConfig {
    /// Maximum number of layers. Guards allocations against nonsensical values.
    pub const MOST_LAYERS: usize = 10_000;
    /// Maximum number of experts over all layers.
    const MOST_EXPERTS: usize = 100_000;

    /// Checks that the sizes and choices are consistent.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig { n_kv_heads: 3, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert!(config.validate().unwrap_err().to_string().contains("n_kv_heads"));
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] naming the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = [
            ("n_layers", self.n_layers),
            ("d_model", self.d_model),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("d_head", self.d_head),
            ("d_vocab", self.d_vocab),
            ("d_vocab_out", self.d_vocab_out.max(1)),
            ("n_ctx", self.n_ctx),
            ("d_mlp", if self.attn_only { 1 } else { self.d_mlp }),
        ];
        let fails = |field, reason: String| Err(ConfigError::Contradiction { field, reason });
        if self.d_head == 0 && self.n_heads > 0 && !self.d_model.is_multiple_of(self.n_heads) {
            let reason = format!("{} heads do not divide a d_model of {}", self.n_heads, self.d_model);
            return fails("n_heads", format!("{reason}; set d_head and attn_scale"));
        }
        // Far larger than in any model, and small enough that the product of two sizes does not overflow.
        const LARGEST: usize = 1 << 28;
        for (field, value) in positive {
            if value == 0 || value > LARGEST {
                return Err(ConfigError::BadSize { field, given: value });
            }
        }
        if self.n_layers > Self::MOST_LAYERS {
            return Err(ConfigError::BadSize { field: "n_layers", given: self.n_layers });
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return fails(
                "n_kv_heads",
                format!("{} heads can't be divided evenly among {} key/value heads", self.n_heads, self.n_kv_heads),
            );
        }
        if !self.mixers.is_empty() && self.mixers.len() != self.n_layers {
            return fails("mixers", format!("{} entries for {} layers", self.mixers.len(), self.n_layers));
        }
        for (layer, mixer) in self.mixers.iter().enumerate() {
            let state = match *mixer {
                Mixer::StateSpace(own) => Some((
                    "state space",
                    [own.n_heads, own.d_head, own.n_groups, own.d_state, own.width],
                    [own.n_heads, own.n_groups],
                    format!(
                        "{} heads of layer {layer} can't be divided evenly into {} groups",
                        own.n_heads, own.n_groups
                    ),
                )),
                Mixer::GatedDelta(own) => Some((
                    "gated delta net",
                    [own.n_key_heads, own.n_value_heads, own.d_key, own.d_value, own.width],
                    [own.n_value_heads, own.n_key_heads],
                    format!(
                        "{} value heads of layer {layer} can't be divided evenly among {} key heads",
                        own.n_value_heads, own.n_key_heads
                    ),
                )),
                Mixer::ShortConv(own) => Some(("short convolution", [1, 1, 1, 1, own.width], [1, 1], String::new())),
                Mixer::Attention { .. } | Mixer::None => None,
            };
            if let Some((kind, sizes, [heads, shared], not_shared)) = state {
                if let Some(size) = sizes.into_iter().find(|size| !(1..=LARGEST).contains(size)) {
                    return fails("mixers", format!("the {kind} of layer {layer} has an invalid size: {size}"));
                }
                if sizes[4] < 2 {
                    return fails(
                        "mixers",
                        format!("the convolution of layer {layer} covers fewer than two positions"),
                    );
                }
                if !heads.is_multiple_of(shared) {
                    return fails("mixers", not_shared);
                }
                if let Mixer::StateSpace(StateSpace { n_heads, d_head, norm_groups, least_step, .. }) = *mixer {
                    if norm_groups == 0 || !(n_heads * d_head).is_multiple_of(norm_groups) {
                        let channels = n_heads * d_head;
                        let reason = format!(
                            "{channels} channels of layer {layer} can't be divided evenly into {norm_groups} norm \
                             groups"
                        );
                        return fails("mixers", reason);
                    }
                    if !(least_step.is_finite() && least_step >= 0.0) {
                        return fails("mixers", format!("the minimum step of layer {layer} can't be {least_step}"));
                    }
                }
                continue;
            }
            if !self.mixes(layer) {
                continue;
            }
            let (kv_heads, d_head) = (self.n_kv_heads_of(layer), self.d_head_of(layer));
            if kv_heads == 0 || !self.n_heads.is_multiple_of(kv_heads) {
                let reason = format!(
                    "{} heads of layer {layer} can't be divided evenly among {kv_heads} key/value heads",
                    self.n_heads
                );
                return fails("mixers", reason);
            }
            if !(1..=LARGEST).contains(&d_head) {
                return fails("mixers", format!("the heads of layer {layer} have an invalid width: {d_head}"));
            }
        }
        if self.has_states() {
            let reason = "recurrent layers can't be bidirectional or have Shortformer positions or a normalized stream"
                .to_string();
            if self.bidirectional {
                return fails("bidirectional", reason);
            }
            if self.positional == Positional::Shortformer || self.stream_is_normalized() {
                return fails("mixers", reason);
            }
        }
        if !self.shared_keys.is_empty() && self.shared_keys.len() != self.n_layers {
            return fails("shared_keys", format!("{} entries for {} layers", self.shared_keys.len(), self.n_layers));
        }
        for layer in 0..self.n_layers {
            let Some(from) = self.reads_keys_of(layer) else { continue };
            let apart = !self.attends(layer) || !self.attends(from);
            if apart || from >= layer || self.reads_keys_of(from).is_some() {
                return fails("shared_keys", format!("layer {from} has no keys for layer {layer} to reuse"));
            }
            let heads = |of| (self.n_kv_heads_of(of), self.d_head_of(of), self.window(of), self.rotary(of));
            if heads(layer) != heads(from) {
                return fails("shared_keys", format!("heads, window or rotation of layers {layer} and {from} differ"));
            }
        }
        if self.shared_keys.iter().any(Option::is_some) && (self.latent.is_some() || self.bidirectional) {
            return fails("shared_keys", "sharing keys requires causal attention without latents".into());
        }
        if !self.mixers.is_empty() && self.latent.is_some() {
            return fails("latent", "latent attention can't be combined with `mixers`".into());
        }
        for (field, eps) in [("eps", Some(self.eps)), ("final_eps", self.final_eps)] {
            if let Some(eps) = eps.filter(|eps| !(eps.is_finite() && *eps >= 0.0)) {
                return fails(field, format!("{eps} is not a small positive number"));
            }
        }
        if !(self.attn_scale.is_finite() && self.attn_scale > 0.0) {
            return fails("attn_scale", format!("scores can't be divided by {}", self.attn_scale));
        }
        for (field, cap) in [
            ("attn_scores_soft_cap", self.attn_scores_soft_cap),
            ("output_logits_soft_cap", self.output_logits_soft_cap),
        ] {
            if cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
                return fails(field, format!("{cap:?} is not a positive number"));
            }
        }
        if !self.windows.is_empty() && self.windows.len() != self.n_layers {
            return fails("windows", format!("{} entries for {} layers", self.windows.len(), self.n_layers));
        }
        if let Some(layer) = (0..self.n_layers).find(|layer| self.window(*layer).is_some_and(|own| own.width() == 0)) {
            return fails("windows", format!("layer {layer} has a window of 0, which covers no position"));
        }
        if self.bidirectional && self.windows.iter().flatten().any(|window| matches!(window, Window::Chunked(_))) {
            return fails("windows", "chunks are defined for causal attention only".into());
        }
        if !self.bidirectional && self.windows.iter().flatten().any(|window| matches!(window, Window::Around(_))) {
            return fails("windows", "a window on both sides requires bidirectional attention".into());
        }
        if !self.layer_rotary.is_empty() && self.layer_rotary.len() != self.n_layers {
            return fails("layer_rotary", format!("{} entries for {} layers", self.layer_rotary.len(), self.n_layers));
        }
        if !self.layer_rotary.is_empty() && !matches!(self.positional, Positional::Rotary(_)) {
            return fails("layer_rotary", "only rotary positions can differ between layers".into());
        }
        if self.positional == Positional::ScaledAlibi && self.scale_attn_by_inverse_layer_idx {
            return fails("positional", "scaled ALiBi can't be combined with `scale_attn_by_inverse_layer_idx`".into());
        }
        if self.embed_scale.is_some_and(|scale| !scale.is_finite()) {
            return fails("embed_scale", format!("{:?} is not a number", self.embed_scale));
        }
        for layer in self.attending() {
            let (Some(rotary), d_head) = (self.rotary(layer), self.d_head_of(layer)) else { continue };
            if rotary.dim == 0 || rotary.dim > d_head || !rotary.dim.is_multiple_of(2) {
                return fails(
                    "rotary.dim",
                    format!("{} is not a positive even number within d_head {d_head}", rotary.dim),
                );
            }
            if !(rotary.base.is_finite() && rotary.base > 0.0) {
                return fails("rotary.base", format!("{} is not a positive number", rotary.base));
            }
            rotary.scaling.validate(rotary.dim)?;
        }
        if let Some(norm) = self.qk_norm
            && norm.kind == NormKind::None
        {
            return fails("qk_norm", "its kind must not be `None`".into());
        }
        if self.positional == Positional::LearnedNormalized && !self.post_embedding_norm {
            let reason = "normalized position vectors require an embedding norm (`post_embedding_norm`)";
            return fails("positional", reason.into());
        }
        if self.query_growth.is_some_and(|growth| !growth.rate.is_finite() || growth.context == 0) {
            return fails(
                "query_growth",
                format!("the rate must be finite and the context positive, not {:?}", self.query_growth),
            );
        }
        if !(self.alibi_bias_max.is_finite() && self.alibi_bias_max > 0.0) {
            return fails("alibi_bias_max", format!("{} is not a positive number", self.alibi_bias_max));
        }
        if self.qkv_clip.is_some_and(|clip| !(clip.is_finite() && clip > 0.0)) {
            return fails("qkv_clip", format!("{:?} is not a positive number", self.qkv_clip));
        }
        if self.qk_norm.is_some_and(|norm| norm.values) && self.latent.is_some() {
            return fails("qk_norm", "value norms can't be combined with latent attention".into());
        }
        if let Some(own) = self.per_layer_inputs {
            if own.width == 0 || own.width.saturating_mul(self.n_layers) > LARGEST {
                return fails(
                    "per_layer_inputs",
                    format!("a width of {} for each of {} layers is out of range", own.width, self.n_layers),
                );
            }
            if self.attn_only || self.parallel || self.stream_is_normalized() || self.post_embedding_norm {
                return fails(
                    "per_layer_inputs",
                    "it requires blocks of attention followed by an MLP, without a normalized stream".into(),
                );
            }
        }
        if self.layer_scalars && (self.parallel || self.attn_only || self.stream_is_normalized()) {
            return fails(
                "layer_scalars",
                "it requires blocks of attention followed by an MLP, without a normalized stream".into(),
            );
        }
        let serial = self.pre_norms && !self.post_norms && !self.parallel && !self.attn_only;
        if self.stream_is_normalized() && !serial {
            let field = if self.residual_norms { "residual_norms" } else { "normalized_residual" };
            return fails(
                field,
                "it requires blocks of attention followed by an MLP, with one norm before each".into(),
            );
        }
        if self.residual_norms && self.normalized_residual {
            return fails("residual_norms", "it can't be combined with `normalized_residual`".into());
        }
        if let Some(latent) = self.latent {
            let sizes = [Some(latent.kv_rank), latent.q_rank, Some(latent.d_rope), Some(latent.d_value)];
            if let Some(size) = sizes.into_iter().flatten().find(|size| !(1..=LARGEST).contains(size)) {
                return fails("latent", format!("{size} is not a valid width"));
            }
            let turned = matches!(&self.positional, Positional::Rotary(rotary) if rotary.dim == latent.d_rope);
            if !turned || !self.layer_rotary.is_empty() || latent.d_rope >= self.d_head {
                return fails(
                    "latent",
                    format!(
                        "every layer must rotate {} dimensions, and `d_head` ({}) must be larger than that",
                        latent.d_rope, self.d_head
                    ),
                );
            }
            if self.qk_norm.is_some() || self.n_kv_heads != self.n_heads {
                return fails(
                    "latent",
                    "latent attention requires `n_kv_heads` equal to `n_heads`, and no `qk_norm`".into(),
                );
            }
            if !(latent.eps.is_finite() && latent.eps >= 0.0) {
                return fails("latent", format!("{} is not a small positive number", latent.eps));
            }
        }
        if let Some(AttnExperts { count, per_token }) = self.attn_experts {
            if per_token == 0 || per_token > count {
                return fails("attn_experts", format!("can't choose {per_token} of {count} experts per token"));
            }
            let heads = count.saturating_mul(self.n_kv_heads);
            if heads != self.n_heads {
                let reason = format!(
                    "{count} experts with {} heads each have {heads} heads in total, not {}",
                    self.n_kv_heads, self.n_heads
                );
                return fails("attn_experts", reason);
            }
            if self.latent.is_some() || self.attn_gates || self.positional == Positional::Shortformer {
                return fails(
                    "attn_experts",
                    "attention experts can't be combined with latent attention, `attn_gates` or Shortformer positions"
                        .into(),
                );
            }
        }
        if let Some(experts) = self.experts {
            let all = experts.count.saturating_mul(self.n_layers);
            if experts.per_token == 0 || experts.per_token > experts.count || all > Self::MOST_EXPERTS {
                return fails(
                    "experts",
                    format!("choosing {} of {} experts is not supported", experts.per_token, experts.count),
                );
            }
            if self.attn_only {
                return fails("experts", "the model has no MLPs".into());
            }
            if experts.clipped.is_some() && !self.gated_mlp {
                return fails("experts", "clipped gates require gated experts (`gated_mlp`)".into());
            }
            if experts.own_norms && (experts.shared.is_none() || self.norm == NormKind::None) {
                return fails("experts", "`own_norms` requires a shared expert and a norm".into());
            }
            if experts.own_norms && self.stream_is_normalized() {
                return fails("experts", "`own_norms` can't be combined with a normalized residual stream".into());
            }
            if experts.scales_inputs && experts.clipped.is_some() {
                return fails("experts", "clipped gates can't be combined with `scales_inputs`".into());
            }
            if let RouterFn::SparseMixer { jitter } = experts.router
                && (experts.per_token != 2 || experts.renormalize || !jitter.is_finite())
            {
                return fails(
                    "experts",
                    "SparseMixer requires two experts per token, no renormalization and a finite jitter".into(),
                );
            }
            if !(experts.scale.is_finite() && experts.scale != 0.0) {
                return fails("experts", format!("router weights can't be multiplied by {}", experts.scale));
            }
            if let Some(ExpertGroups { count, kept, best }) = experts.groups {
                if count == 0 || !experts.count.is_multiple_of(count) {
                    return fails("experts", format!("{} experts can't be divided into {count} groups", experts.count));
                }
                let each = experts.count / count;
                if kept == 0 || kept > count || best == 0 || best > each || kept * each < experts.per_token {
                    return fails(
                        "experts",
                        format!(
                            "can't choose {} experts per token from {kept} of {count} groups of {each}, ranked by \
                             their best {best}",
                            experts.per_token
                        ),
                    );
                }
            }
            if let Some(SharedExpert { d_mlp, .. }) = experts.shared.filter(|own| !(1..=LARGEST).contains(&own.d_mlp)) {
                return fails("experts", format!("the shared expert can't have {d_mlp} neurons"));
            }
        }
        let whole = |layer: usize| self.mixes(layer) && (self.attn_only || self.has_mlp(layer));
        if let Some(layer) = (0..self.n_layers).find(|layer| !whole(*layer)) {
            if !self.mixes(layer) && !self.has_mlp(layer) {
                return fails("mixers", format!("layer {layer} has neither a mixer nor an MLP"));
            }
            let serial = !self.parallel && !self.post_norms && !self.stream_is_normalized();
            if !serial
                || self.per_layer_inputs.is_some()
                || self.layer_scalars
                || self.positional == Positional::Shortformer
            {
                let reason = format!(
                    "layer {layer} lacks a mixer or an MLP, which requires sequential blocks with only a norm before \
                     each"
                );
                return fails("mixers", reason);
            }
        }
        let dense = self.dense_mlps.iter().flatten().find(|width| **width > LARGEST);
        if let Some(width) = dense {
            return fails("dense_mlps", format!("an MLP of {width} neurons is too large"));
        }
        if !self.dense_mlps.is_empty() && self.dense_mlps.len() != self.n_layers {
            return fails("dense_mlps", format!("{} entries for {} layers", self.dense_mlps.len(), self.n_layers));
        }
        if self.attn_only && !self.dense_mlps.is_empty() {
            return fails("dense_mlps", "the model has no MLPs".into());
        }
        if self.activation == ActivationFn::Xielu && self.experts.is_some() {
            return fails(
                "activation",
                "xielu has learned slopes, so it is not supported for mixtures of experts".into(),
            );
        }
        if self.activation == ActivationFn::SoluLn && (self.gated_mlp || self.experts.is_some()) {
            return fails("activation", "solu_ln is defined for a plain MLP only".into());
        }
        Ok(())
    }
}
