//! [`TransformerConfig`]: fields, constructor and sizes.
//!
//! Builder methods are in `builder.rs` and `settings.rs`, per-layer values in `layers.rs`.

use serde::{Deserialize, Serialize};

use super::flat::FlatConfig;
use super::validate::MOST_LAYERS;
use super::{
    ActivationFn, AttnExperts, GatedDelta, Latent, LayerConfig, Layers, MixerConfig, MlpConfig, NormKind,
    PerLayerInputs, Positional, QkNorm, QueryGrowth, ResidualScheme, ShortConv, Window,
};

/// The sizes and architectural choices of a transformer.
///
/// Every model family maps to a value of this type, which fully determines the model. Start from
/// [`TransformerConfig::new`], which is GPT-2's architecture, and change what differs with `with_` methods. Methods
/// such as [`d_head`](Self::d_head) return the sizes; each method's documentation says which layer's size it returns if
/// layers differ.
///
/// ```
/// use hooklens::{Positional, TransformerConfig};
/// let config =
///     TransformerConfig::new(2, 64, 4, 100, 32).with_positional(Positional::Shortformer).with_attn_only(true);
/// assert_eq!((config.n_layers(), config.d_head()), (2, 16));
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// In JSON, a configuration has one field per setting, and a list for each setting that differs between layers.
/// Settings without a method can be read and changed in this form:
///
/// ```
/// use hooklens::TransformerConfig;
/// let mut json = serde_json::to_value(TransformerConfig::new(2, 64, 4, 100, 32))?;
/// json["attn_sinks"] = true.into(); // as in GPT-OSS
/// let config: TransformerConfig = serde_json::from_value(json)?;
/// assert_eq!(serde_json::to_value(&config)?["attn_sinks"], true);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "FlatConfig", try_from = "FlatConfig")]
#[non_exhaustive]
pub struct TransformerConfig {
    /// The layers, first to last.
    pub(crate) layers: Vec<LayerConfig>,
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    /// Number of attention heads.
    pub(crate) n_heads: usize,
    /// Vocabulary size.
    pub(crate) d_vocab: usize,
    /// Size of the last axis of the logits; usually `d_vocab`, and 0 for a model without an unembedding.
    pub(crate) d_vocab_out: usize,
    /// Maximum sequence length. Enforced only for learned positions.
    pub(crate) n_ctx: usize,
    /// Norm before attention, the MLP, and the unembedding.
    pub(crate) norm: NormKind,
    /// Epsilon added to the variance (or mean square) inside a norm.
    pub(crate) eps: f64,
    /// Epsilon of the final norm, if it differs from `eps` (JetMoE).
    pub(crate) final_eps: Option<f64>,
    /// Whether the final norm is an RMS norm while the others are layer norms.
    pub(crate) final_rms: bool,
    /// Whether the embedding is normalized (Bloom).
    pub(crate) post_embedding_norm: bool,
    /// Factor applied to token embeddings (Gemma, Granite).
    pub(crate) embed_scale: Option<f64>,
    /// Whether the inputs of attention and the MLP are normalized. If not, only their outputs are (OLMo 2).
    pub(crate) pre_norms: bool,
    /// Whether the outputs of attention and the MLP are normalized (Gemma 2).
    pub(crate) post_norms: bool,
    /// How blocks add to the residual stream.
    pub(crate) residual: ResidualScheme,
    /// Whether there is no norm before the unembedding.
    pub(crate) no_final_norm: bool,
    /// Query and key norms, if any (Qwen 3).
    pub(crate) qk_norm: Option<QkNorm>,
    /// Exponent of the last ALiBi slope, `2^-alibi_bias_max`: 8, or 16 in MPT StoryWriter. Only used with
    /// [`Positional::Alibi`](super::Positional::Alibi).
    pub(crate) alibi_bias_max: f64,
    /// Limit `clip` of queries, keys, and values, which are clipped to `[-clip, clip]` (OLMo). Clipping is applied
    /// after the projection, or after the norm for queries and keys that are normalized before the rotation.
    pub(crate) qkv_clip: Option<f64>,
    /// Position-dependent query scaling, if any (Ministral 3, Llama 4).
    pub(crate) query_growth: Option<QueryGrowth>,
    /// Whether each head has an attention sink: a learned score that takes part in the softmax but has no value
    /// (GPT-OSS), so that a row of the pattern sums to less than one.
    pub(crate) attn_sinks: bool,
    /// Whether head outputs are multiplied by a sigmoid gate computed from the residual stream (Qwen 3 Next).
    pub(crate) attn_gates: bool,
    /// Mixture of attention heads, if any (JetMoE).
    pub(crate) attn_experts: Option<AttnExperts>,
    /// Multi-head latent attention, if any (DeepSeek V2).
    pub(crate) latent: Option<Latent>,
    /// Maximum number of keys per query in a model with sparse attention (DeepSeek V3.2). The indexer that selects keys
    /// is not implemented, so longer sequences are rejected.
    pub(crate) most_keys: Option<usize>,
    /// Positional embedding.
    pub(crate) positional: Positional,
    /// The MLP's activation function.
    pub(crate) activation: ActivationFn,
    /// Divisor of attention scores; usually the square root of `d_head`.
    pub(crate) attn_scale: f64,
    /// Whether scores are also divided by the layer index plus one.
    pub(crate) scale_attn_by_inverse_layer_idx: bool,
    /// Soft cap on attention scores, `cap * tanh(score / cap)`.
    pub(crate) attn_scores_soft_cap: Option<f64>,
    /// Soft cap on logits, `cap * tanh(logit / cap)`.
    pub(crate) output_logits_soft_cap: Option<f64>,
    /// Whether queries also attend to later keys.
    pub(crate) bidirectional: bool,
    /// Per-layer token embeddings, added after the MLP (Gemma 4).
    pub(crate) per_layer_inputs: Option<PerLayerInputs>,
    /// Whether the residual stream after each block is multiplied by a learned scalar of the block (Gemma 4).
    pub(crate) layer_scalars: bool,
    /// Whether a beginning-of-sequence token is prepended to text by default.
    pub(crate) default_prepend_bos: bool,
}

impl TransformerConfig {
    /// Creates a GPT-2-like configuration: layer norm, learned positions, and an MLP four times as wide as `d_model`.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32); // layers, width, heads, vocabulary, positions
    /// assert_eq!((config.d_head(), config.d_mlp(), config.n_kv_heads()), (16, 256, 4));
    /// // If `n_heads` does not divide `d_model`, set `d_head` and `attn_scale`.
    /// let message = TransformerConfig::new(1, 15, 2, 100, 32).validate().unwrap_err().to_string();
    /// assert!(message.ends_with("d_model (15) is not divisible by n_heads (2); set d_head and attn_scale"));
    /// ```
    pub fn new(n_layers: usize, d_model: usize, n_heads: usize, d_vocab: usize, n_ctx: usize) -> Self {
        let shares = n_heads > 0 && d_model.is_multiple_of(n_heads);
        let d_head = if shares { d_model / n_heads } else { 0 };
        // One layer more than the maximum is enough for `validate` to reject the configuration.
        let listed = n_layers.min(MOST_LAYERS + 1);
        Self {
            layers: vec![LayerConfig::plain(n_heads, d_head, d_model.saturating_mul(4)); listed],
            d_model,
            n_heads,
            d_vocab,
            d_vocab_out: d_vocab,
            n_ctx,
            norm: NormKind::LayerNorm,
            eps: 1e-5,
            final_eps: None,
            final_rms: false,
            post_embedding_norm: false,
            embed_scale: None,
            pre_norms: true,
            post_norms: false,
            residual: ResidualScheme::Sequential,
            no_final_norm: false,
            qk_norm: None,
            alibi_bias_max: 8.0,
            qkv_clip: None,
            query_growth: None,
            attn_sinks: false,
            attn_gates: false,
            attn_experts: None,
            latent: None,
            most_keys: None,
            positional: Positional::Learned,
            activation: ActivationFn::GeluNew,
            attn_scale: (d_head as f64).sqrt(),
            scale_attn_by_inverse_layer_idx: false,
            attn_scores_soft_cap: None,
            output_logits_soft_cap: None,
            bidirectional: false,
            per_layer_inputs: None,
            layer_scalars: false,
            default_prepend_bos: true,
        }
    }

    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Number of key/value heads of the first layer with attention; 0 if there is none.
    pub fn n_kv_heads(&self) -> usize {
        self.attending().next().map_or(0, |layer| self.n_kv_heads_of(layer))
    }

    /// Width of a head in the first layer with attention; 0 if there is none.
    pub fn d_head(&self) -> usize {
        self.attending().next().map_or(0, |layer| self.d_head_of(layer))
    }

    /// Number of neurons per expert in the first mixture of experts, or in the first MLP if there is no mixture; 0
    /// without MLPs.
    pub fn d_mlp(&self) -> usize {
        let mixture = self.mlp_layers().find(|layer| self.experts_of(*layer).is_some());
        mixture.or_else(|| self.mlp_layers().next()).map_or(0, |layer| self.d_mlp_of(layer))
    }

    /// Whether no layer has an MLP.
    pub fn attn_only(&self) -> bool {
        self.layers.iter().all(|layer| layer.mlp == MlpConfig::None)
    }

    /// Attention window of a layer, if any.
    ///
    /// ```
    /// use hooklens::{TransformerConfig, Window};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_windows([Some(Window::Sliding(4)), None])?;
    /// assert_eq!((config.window(0), config.window(1)), (Some(Window::Sliding(4)), None));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn window(&self, layer: usize) -> Option<Window> {
        self.mixer(layer).attention()?.window
    }

    /// Width of the residual stream.
    pub fn d_model(&self) -> usize {
        self.d_model
    }

    /// Number of attention heads.
    pub fn n_heads(&self) -> usize {
        self.n_heads
    }

    /// Vocabulary size.
    pub fn d_vocab(&self) -> usize {
        self.d_vocab
    }

    /// Size of the last axis of the logits; usually the vocabulary size, and 0 for a model without an unembedding.
    pub fn d_vocab_out(&self) -> usize {
        self.d_vocab_out
    }

    /// Maximum sequence length. Enforced only for learned positions.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Norm before attention, the MLP, and the unembedding.
    pub fn norm(&self) -> NormKind {
        self.norm
    }

    /// The MLP's activation function.
    pub fn activation(&self) -> ActivationFn {
        self.activation
    }

    /// Whether a beginning-of-sequence token is prepended to text by default.
    pub fn default_prepend_bos(&self) -> bool {
        self.default_prepend_bos
    }

    /// Number of experts in the first mixture of experts; 0 if there is none.
    pub fn n_experts(&self) -> usize {
        self.experts().map_or(0, |experts| experts.count)
    }

    pub(super) fn mixer(&self, layer: usize) -> &MixerConfig {
        self.layers.get(layer).map_or(&MixerConfig::None, |layer| &layer.mixer)
    }

    pub(super) fn mlp(&self, layer: usize) -> MlpConfig {
        self.layers.get(layer).map_or(MlpConfig::None, |layer| layer.mlp)
    }

    /// The gated delta net that a layer has in place of attention, if any.
    pub(crate) fn gated_delta_of(&self, layer: usize) -> Option<GatedDelta> {
        match *self.mixer(layer) {
            MixerConfig::GatedDeltaNet(net) => Some(net),
            _ => None,
        }
    }

    /// The short convolution that a layer has in place of attention, if any.
    pub(crate) fn short_conv_of(&self, layer: usize) -> Option<ShortConv> {
        match *self.mixer(layer) {
            MixerConfig::ShortConvolution(conv) => Some(conv),
            _ => None,
        }
    }

    /// Whether a block is a mixer and an MLP in sequence, with only a norm before each, so that a layer can omit
    /// either.
    pub(super) fn is_plain_sequence(&self) -> bool {
        self.residual == ResidualScheme::Sequential
            && !self.post_norms
            && !self.layer_scalars
            && self.per_layer_inputs.is_none()
            && self.positional != Positional::Shortformer
    }
}
