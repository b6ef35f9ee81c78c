//! [`FlatConfig`]: a configuration as it is stored, with one field per setting and lists for settings that differ
//! between layers.

use serde::{Deserialize, Serialize};

use super::{
    ActivationFn, AttentionConfig, AttnExperts, ConfigError, Experts, GatedDelta, Latent, LayerConfig, LayerRotary,
    Layers, MixerConfig, MlpConfig, NormKind, PerLayerInputs, Positional, QkNorm, QueryGrowth, ResidualScheme, Rotary,
    ShortConv, StateSpace, TransformerConfig, Window,
};

/// A configuration as it is stored in files. Each field has the same meaning as the [`TransformerConfig`] setting with
/// that name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlatConfig {
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Number of key/value heads, unless `mixers` gives a different number.
    pub n_kv_heads: usize,
    /// Width of a head, unless `mixers` gives a different width.
    pub d_head: usize,
    /// Token mixer of each layer; empty if all layers have attention with the sizes above.
    pub mixers: Vec<FlatMixer>,
    /// The layer whose keys and values each layer reuses; empty if none does.
    pub shared_keys: Vec<Option<usize>>,
    /// Number of neurons per MLP or expert, unless `dense_mlps` gives a different number.
    pub d_mlp: usize,
    /// Vocabulary size.
    pub d_vocab: usize,
    /// Size of the last axis of the logits.
    pub d_vocab_out: usize,
    /// Maximum sequence length.
    pub n_ctx: usize,
    /// Kind of norm.
    pub norm: NormKind,
    /// Epsilon of norms.
    pub eps: f64,
    /// Epsilon of the final norm.
    pub final_eps: Option<f64>,
    /// Whether the final norm is an RMS norm.
    pub final_rms: bool,
    /// Whether the embedding is normalized.
    pub post_embedding_norm: bool,
    /// Factor applied to token embeddings.
    pub embed_scale: Option<f64>,
    /// Whether the inputs of attention and the MLP are normalized.
    pub pre_norms: bool,
    /// Whether the outputs of attention and the MLP are normalized.
    pub post_norms: bool,
    /// Whether the residual scheme is [`ResidualScheme::NormalizedSums`].
    pub residual_norms: bool,
    /// Whether the residual scheme is [`ResidualScheme::NormalizedInputs`].
    pub normalized_residual: bool,
    /// Whether there is no norm before the unembedding.
    pub no_final_norm: bool,
    /// Query and key norms.
    pub qk_norm: Option<QkNorm>,
    /// Exponent of the last ALiBi slope.
    pub alibi_bias_max: f64,
    /// Clipping limit of queries, keys and values.
    pub qkv_clip: Option<f64>,
    /// Position-dependent scaling of queries.
    pub query_growth: Option<QueryGrowth>,
    /// Whether heads have attention sinks.
    pub attn_sinks: bool,
    /// Whether head outputs are gated.
    pub attn_gates: bool,
    /// Mixture of attention heads.
    pub attn_experts: Option<AttnExperts>,
    /// Latent attention.
    pub latent: Option<Latent>,
    /// Maximum number of keys per query.
    pub most_keys: Option<usize>,
    /// Positional embedding.
    pub positional: Positional,
    /// Rotary embeddings of each layer; empty if all layers use the model's rotary embeddings.
    pub layer_rotary: Vec<Option<Rotary>>,
    /// Activation function.
    pub activation: ActivationFn,
    /// Whether MLPs are gated.
    pub gated_mlp: bool,
    /// Whether there are no MLPs.
    pub attn_only: bool,
    /// Whether the residual scheme is [`ResidualScheme::Parallel`].
    pub parallel: bool,
    /// Divisor of scores.
    pub attn_scale: f64,
    /// Whether scores are also divided by the layer index plus one.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Soft cap on scores.
    pub attn_scores_soft_cap: Option<f64>,
    /// Soft cap on logits.
    pub output_logits_soft_cap: Option<f64>,
    /// Whether queries also attend to later keys.
    pub bidirectional: bool,
    /// Window of each layer; empty if no layer has one.
    pub windows: Vec<Option<Window>>,
    /// Mixture of experts in place of MLPs.
    pub experts: Option<Experts>,
    /// For each layer, the width of its dense MLP if the layer has one instead of experts or if the width is not
    /// `d_mlp`; 0 if the layer has no MLP; `None` if the fields above describe its MLP. Empty if all are `None`.
    pub dense_mlps: Vec<Option<usize>>,
    /// Per-layer token embeddings.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Whether blocks have a learned scalar.
    pub layer_scalars: bool,
    /// Whether a beginning-of-sequence token is prepended by default.
    pub default_prepend_bos: bool,
    /// All layers, if the fields above can't describe them; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerConfig>,
}

/// A token mixer as it is stored in files.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum FlatMixer {
    /// Attention.
    Attention {
        /// Number of key/value heads.
        n_kv_heads: usize,
        /// Width of a head.
        d_head: usize,
    },
    /// A gated delta net.
    GatedDelta(GatedDelta),
    /// Mamba 2.
    StateSpace(StateSpace),
    /// A short convolution.
    ShortConv(ShortConv),
    /// No mixer.
    None,
}

impl From<FlatMixer> for MixerConfig {
    fn from(mixer: FlatMixer) -> Self {
        match mixer {
            FlatMixer::Attention { n_kv_heads, d_head } => Self::Attention(AttentionConfig::new(n_kv_heads, d_head)),
            FlatMixer::GatedDelta(net) => Self::GatedDeltaNet(net),
            FlatMixer::StateSpace(space) => Self::Mamba2(space),
            FlatMixer::ShortConv(conv) => Self::ShortConvolution(conv),
            FlatMixer::None => Self::None,
        }
    }
}

impl FlatMixer {
    /// Converts a mixer to this form, which leaves out windows, rotary embeddings and shared keys.
    fn of(mixer: &MixerConfig) -> Self {
        match mixer {
            MixerConfig::Attention(own) | MixerConfig::AttentionAndMamba2(own, _) => {
                Self::Attention { n_kv_heads: own.n_kv_heads, d_head: own.d_head }
            }
            MixerConfig::GatedDeltaNet(net) => Self::GatedDelta(*net),
            MixerConfig::Mamba2(space) => Self::StateSpace(*space),
            MixerConfig::ShortConvolution(conv) => Self::ShortConv(*conv),
            MixerConfig::None => Self::None,
        }
    }
}

impl TryFrom<FlatConfig> for TransformerConfig {
    type Error = ConfigError;

    fn try_from(flat: FlatConfig) -> Result<Self, ConfigError> {
        let residual = match (flat.parallel, flat.residual_norms, flat.normalized_residual) {
            (false, false, false) => ResidualScheme::Sequential,
            (true, false, false) => ResidualScheme::Parallel,
            (false, true, false) => ResidualScheme::NormalizedSums,
            (false, false, true) => ResidualScheme::NormalizedInputs,
            _ => {
                let reason = "only one of `parallel`, `residual_norms` and `normalized_residual` can be set";
                return ConfigError::refuse("residual_norms", reason.into());
            }
        };
        if flat.attn_only && (flat.experts.is_some() || !flat.dense_mlps.is_empty()) {
            let field = if flat.experts.is_some() { "experts" } else { "dense_mlps" };
            return ConfigError::refuse(field, "can't be combined with `attn_only`, which removes all MLPs".into());
        }
        let mlp = |own: &Option<usize>| match (*own, flat.experts, flat.gated_mlp) {
            (Some(0), ..) => MlpConfig::None,
            (None, Some(experts), gated) => MlpConfig::Experts { experts, d_mlp: flat.d_mlp, gated },
            (own, _, true) => MlpConfig::Gated { d_mlp: own.unwrap_or(flat.d_mlp) },
            (own, _, false) => MlpConfig::Dense { d_mlp: own.unwrap_or(flat.d_mlp) },
        };
        let base = Self::new(flat.n_layers, flat.d_model, flat.n_heads, flat.d_vocab, flat.n_ctx);
        let mlps: Vec<_> = flat.dense_mlps.iter().map(mlp).collect();
        let config = Self {
            d_vocab_out: flat.d_vocab_out,
            norm: flat.norm,
            eps: flat.eps,
            final_eps: flat.final_eps,
            final_rms: flat.final_rms,
            post_embedding_norm: flat.post_embedding_norm,
            embed_scale: flat.embed_scale,
            pre_norms: flat.pre_norms,
            post_norms: flat.post_norms,
            residual,
            no_final_norm: flat.no_final_norm,
            qk_norm: flat.qk_norm,
            alibi_bias_max: flat.alibi_bias_max,
            qkv_clip: flat.qkv_clip,
            query_growth: flat.query_growth,
            attn_sinks: flat.attn_sinks,
            attn_gates: flat.attn_gates,
            attn_experts: flat.attn_experts,
            latent: flat.latent,
            most_keys: flat.most_keys,
            positional: flat.positional,
            activation: flat.activation,
            attn_scale: flat.attn_scale,
            scale_attn_by_inverse_layer_idx: flat.scale_attn_by_inverse_layer_idx,
            attn_scores_soft_cap: flat.attn_scores_soft_cap,
            output_logits_soft_cap: flat.output_logits_soft_cap,
            bidirectional: flat.bidirectional,
            per_layer_inputs: flat.per_layer_inputs,
            layer_scalars: flat.layer_scalars,
            default_prepend_bos: flat.default_prepend_bos,
            ..base
        };
        if !flat.layers.is_empty() {
            return Ok(Self { layers: flat.layers, ..config });
        }
        let config = config
            .with_kv_heads(flat.n_kv_heads)
            .with_d_head(flat.d_head)
            .with_d_mlp(flat.d_mlp)
            .with_gated_mlp(flat.gated_mlp)
            .with_mixture(flat.experts)
            .with_attn_only(flat.attn_only);
        let config = match flat.mixers.is_empty() {
            true => config,
            false => config.with_mixers(flat.mixers.into_iter().map(MixerConfig::from))?,
        };
        let config = if mlps.is_empty() { config } else { config.with_mlps(mlps)? };
        config.with_windows(flat.windows)?.with_layer_rotary(flat.layer_rotary)?.with_shared_keys(flat.shared_keys)
    }
}

/// Returns the values, one per layer, or an empty list if all of them equal `all`.
fn unless_all<T: PartialEq>(values: Vec<T>, all: &T) -> Vec<T> {
    if values.iter().all(|value| value == all) { Vec::new() } else { values }
}

impl From<&TransformerConfig> for FlatConfig {
    fn from(config: &TransformerConfig) -> Self {
        let flat = Self::without_layers(config);
        match TransformerConfig::try_from(flat.clone()) {
            Ok(same) if same.layers == config.layers => flat,
            _ => Self { layers: config.layers.clone(), ..flat },
        }
    }
}

impl FlatConfig {
    fn without_layers(c: &TransformerConfig) -> Self {
        let layers = || c.layers.iter().enumerate();
        // Default sizes for a model in which no layer has attention or an MLP.
        let unused = TransformerConfig::new(1, c.d_model, c.n_heads, c.d_vocab, c.n_ctx);
        let any = c.attending().next().map_or(&unused, |_| c);
        let (n_kv_heads, d_head) = (any.n_kv_heads(), any.d_head());
        let experts = c.experts();
        let d_mlp = if c.attn_only() { unused.d_mlp() } else { c.d_mlp() };
        let dense = |mlp: &MlpConfig| match mlp {
            MlpConfig::None => Some(0),
            MlpConfig::Experts { .. } => None,
            own if experts.is_some() => Some(own.d_mlp()),
            own => Some(own.d_mlp()).filter(|own| *own != d_mlp),
        };
        let attention = FlatMixer::Attention { n_kv_heads, d_head };
        let own_rotary =
            layers().any(|(_, own)| own.mixer.attention().is_some_and(|own| own.rotary != LayerRotary::Model));
        let dense_mlps = layers().map(|(_, own)| dense(&own.mlp)).collect();
        Self {
            n_layers: c.n_layers(),
            d_model: c.d_model,
            n_heads: c.n_heads,
            n_kv_heads,
            d_head,
            mixers: unless_all(layers().map(|(_, own)| FlatMixer::of(&own.mixer)).collect(), &attention),
            shared_keys: unless_all(layers().map(|(layer, _)| c.reads_keys_of(layer)).collect(), &None),
            d_mlp,
            d_vocab: c.d_vocab,
            d_vocab_out: c.d_vocab_out,
            n_ctx: c.n_ctx,
            norm: c.norm,
            eps: c.eps,
            final_eps: c.final_eps,
            final_rms: c.final_rms,
            post_embedding_norm: c.post_embedding_norm,
            embed_scale: c.embed_scale,
            pre_norms: c.pre_norms,
            post_norms: c.post_norms,
            residual_norms: c.residual == ResidualScheme::NormalizedSums,
            normalized_residual: c.residual == ResidualScheme::NormalizedInputs,
            no_final_norm: c.no_final_norm,
            qk_norm: c.qk_norm,
            alibi_bias_max: c.alibi_bias_max,
            qkv_clip: c.qkv_clip,
            query_growth: c.query_growth,
            attn_sinks: c.attn_sinks,
            attn_gates: c.attn_gates,
            attn_experts: c.attn_experts,
            latent: c.latent,
            most_keys: c.most_keys,
            positional: c.positional.clone(),
            layer_rotary: match own_rotary {
                true => layers().map(|(layer, _)| c.rotary(layer).cloned()).collect(),
                false => Vec::new(),
            },
            activation: c.activation,
            gated_mlp: c.layers.iter().any(|own| own.mlp.is_gated()),
            attn_only: c.attn_only(),
            parallel: c.residual == ResidualScheme::Parallel,
            attn_scale: c.attn_scale,
            scale_attn_by_inverse_layer_idx: c.scale_attn_by_inverse_layer_idx,
            attn_scores_soft_cap: c.attn_scores_soft_cap,
            output_logits_soft_cap: c.output_logits_soft_cap,
            bidirectional: c.bidirectional,
            windows: unless_all(layers().map(|(layer, _)| c.window(layer)).collect(), &None),
            experts,
            dense_mlps: if c.attn_only() { Vec::new() } else { unless_all(dense_mlps, &None) },
            per_layer_inputs: c.per_layer_inputs,
            layer_scalars: c.layer_scalars,
            default_prepend_bos: c.default_prepend_bos,
            layers: Vec::new(),
        }
    }
}

impl From<TransformerConfig> for FlatConfig {
    fn from(config: TransformerConfig) -> Self {
        Self::from(&config)
    }
}
