//! [`TransformerConfig`]: fields, constructors, and per-layer values.
//!
//! Builder methods are in `builder.rs`.

use serde::{Deserialize, Serialize};

use super::flat::FlatConfig;
use super::{
    ActivationFn, AttnExperts, Experts, GatedDelta, Latent, LayerConfig, LayerRotary, MixerConfig, MlpConfig, NormKind,
    PerLayerInputs, Positional, QkNorm, QueryGrowth, ResidualScheme, Rotary, ShortConv, StateSpace, Window,
};

/// The sizes and architectural choices of a transformer.
///
/// Every model family maps to a value of this type, which fully determines the model. Start from
/// [`TransformerConfig::new`] and change what differs, with methods or by assigning to fields. What layers are made of
/// is in [`layers`](Self::layers); everything else holds for all of them.
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
/// Its JSON has one field per setting and a list for each setting that differs between layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "FlatConfig", try_from = "FlatConfig")]
#[non_exhaustive]
pub struct TransformerConfig {
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of attention heads.
    pub n_heads: usize,
    /// Vocabulary size.
    pub d_vocab: usize,
    /// Size of the last axis of the logits; usually `d_vocab`, and 0 for a model without an unembedding.
    pub d_vocab_out: usize,
    /// Maximum sequence length. Enforced only for learned positions.
    pub n_ctx: usize,
    /// Norm before attention, the MLP, and the unembedding.
    pub norm: NormKind,
    /// Epsilon added to the variance (or mean square) inside a norm.
    pub eps: f64,
    /// Epsilon of the final norm, if different (JetMoE).
    pub final_eps: Option<f64>,
    /// Whether the final norm is an RMS norm while the others are layer norms.
    pub final_rms: bool,
    /// Whether the embedding is normalized (Bloom).
    pub post_embedding_norm: bool,
    /// Factor on token embeddings (Gemma, Granite).
    pub embed_scale: Option<f64>,
    /// Whether attention and the MLP have norms on their inputs. Without these, they only have norms on their outputs
    /// (OLMo 2).
    pub pre_norms: bool,
    /// Whether the outputs of attention and the MLP are normalized (Gemma 2).
    pub post_norms: bool,
    /// How blocks add to the residual stream.
    pub residual: ResidualScheme,
    /// Whether there is no norm before the unembedding.
    pub no_final_norm: bool,
    /// Query and key norms, if any (Qwen 3).
    pub qk_norm: Option<QkNorm>,
    /// Exponent of the last ALiBi slope, `2^-alibi_bias_max`: 8, or 16 in MPT StoryWriter. Only used with
    /// [`Positional::Alibi`](super::Positional::Alibi).
    pub alibi_bias_max: f64,
    /// Clips queries, keys, and values to `[-clip, clip]` (OLMo). The clipping follows the projection or, for queries
    /// and keys that are normalized before the rotation, the norm.
    pub qkv_clip: Option<f64>,
    /// Position-dependent scaling of rotated queries, if any (Ministral 3).
    pub query_growth: Option<QueryGrowth>,
    /// Whether each head has an attention sink: a learned score that takes part in the softmax but has no value
    /// (GPT-OSS), so that a row of the pattern sums to less than one.
    pub attn_sinks: bool,
    /// Whether head outputs are multiplied by a sigmoid gate computed from the residual stream (Qwen 3 Next).
    pub attn_gates: bool,
    /// Mixture of attention heads, if any (JetMoE).
    pub attn_experts: Option<AttnExperts>,
    /// Multi-head latent attention, if any (DeepSeek V2).
    pub latent: Option<Latent>,
    /// Maximum number of keys per query in a model with sparse attention (DeepSeek V3.2). The indexer that selects keys
    /// is not implemented, so longer sequences are rejected.
    pub most_keys: Option<usize>,
    /// Positional embedding.
    pub positional: Positional,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// Divisor of attention scores; usually the square root of `d_head`.
    pub attn_scale: f64,
    /// Whether scores are also divided by the layer index plus one.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Soft cap on attention scores, `cap * tanh(score / cap)`.
    pub attn_scores_soft_cap: Option<f64>,
    /// Soft cap on logits, `cap * tanh(logit / cap)`.
    pub output_logits_soft_cap: Option<f64>,
    /// Whether queries also attend to later keys.
    pub bidirectional: bool,
    /// Per-layer token embeddings, added after the MLP (Gemma 4).
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Whether the residual stream after each block is multiplied by a learned scalar of the block (Gemma 4).
    pub layer_scalars: bool,
    /// Whether a beginning-of-sequence token is prepended to text by default.
    pub default_prepend_bos: bool,
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
    /// assert_eq!(message, "invalid `n_heads`: 2 heads do not divide a d_model of 15; set d_head and attn_scale");
    /// ```
    pub fn new(n_layers: usize, d_model: usize, n_heads: usize, d_vocab: usize, n_ctx: usize) -> Self {
        let shares = n_heads > 0 && d_model.is_multiple_of(n_heads);
        let d_head = if shares { d_model / n_heads } else { 0 };
        // More layers than this are refused by `validate`, which counts them.
        let listed = n_layers.min(Self::MOST_LAYERS + 1);
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

    /// The sizes of GPT-2 small: 12 layers, width 768, 12 heads, 50,257 tokens, 1,024 positions.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::gpt2_small();
    /// assert_eq!((config.n_layers(), config.d_model, config.d_vocab), (12, 768, 50_257));
    /// ```
    pub fn gpt2_small() -> Self {
        Self::new(12, 768, 12, 50257, 1024)
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

    /// Number of neurons of each expert in the first mixture of experts, or else of the first MLP; 0 without MLPs.
    pub fn d_mlp(&self) -> usize {
        let mixture = self.mlp_layers().find(|layer| self.experts_of(*layer).is_some());
        mixture.or_else(|| self.mlp_layers().next()).map_or(0, |layer| self.d_mlp_of(layer))
    }

    /// The mixture of experts of the first layer that has one.
    pub fn experts(&self) -> Option<Experts> {
        self.layers.iter().find_map(|layer| layer.mlp.experts())
    }

    /// Whether no layer has an MLP.
    pub fn attn_only(&self) -> bool {
        self.layers.iter().all(|layer| layer.mlp == MlpConfig::None)
    }

    fn mixer(&self, layer: usize) -> &MixerConfig {
        self.layers.get(layer).map_or(&MixerConfig::None, |layer| &layer.mixer)
    }

    fn mlp(&self, layer: usize) -> MlpConfig {
        self.layers.get(layer).map_or(MlpConfig::None, |layer| layer.mlp)
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

    /// Divisor of a layer's attention scores.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32);
    /// assert_eq!(config.score_divisor(1), 4.0); // the square root of `d_head`, 16
    /// let by_layer = config.with_scale_attn_by_inverse_layer_idx(true);
    /// assert_eq!(by_layer.score_divisor(1), 8.0);
    /// ```
    pub fn score_divisor(&self, layer: usize) -> f64 {
        let by_layer = if self.scale_attn_by_inverse_layer_idx { (layer + 1) as f64 } else { 1.0 };
        self.attn_scale * by_layer
    }

    /// Rotary embeddings of a layer, if any.
    ///
    /// ```
    /// use hooklens::{RopeScaling, Rotary, TransformerConfig};
    /// let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32)
    ///     .with_rotary(rotary.clone())
    ///     .with_layer_rotary([Some(rotary.clone()), None])?; // the second layer has no rotary embeddings
    /// assert_eq!((config.rotary(0), config.rotary(1)), (Some(&rotary), None));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn rotary(&self, layer: usize) -> Option<&Rotary> {
        let Positional::Rotary(all) = &self.positional else { return None };
        match &self.mixer(layer).attention()?.rotary {
            LayerRotary::Model => Some(all),
            LayerRotary::Own(own) => Some(own),
            LayerRotary::None => None,
        }
    }

    /// Query and key norms of a layer, if any.
    ///
    /// ```
    /// use hooklens::{QkNorm, TransformerConfig};
    /// let qk_norm = QkNorm { rotating_layers: true, ..QkNorm::HEADS };
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_qk_norm(qk_norm);
    /// assert_eq!(config.qk_norm_of(0), None); // positions are learned, so no layer is rotary
    /// ```
    pub fn qk_norm_of(&self, layer: usize) -> Option<QkNorm> {
        self.qk_norm.filter(|norm| !norm.rotating_layers || self.rotary(layer).is_some())
    }

    /// Position-dependent query scaling of a layer, if any.
    ///
    /// ```
    /// use hooklens::{QueryGrowth, TransformerConfig};
    /// let growth = QueryGrowth { rate: 0.1, context: 16, ahead: 0, still_layers: false };
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_query_growth(growth);
    /// assert_eq!(config.query_growth_of(1), Some(growth));
    /// ```
    pub fn query_growth_of(&self, layer: usize) -> Option<QueryGrowth> {
        self.query_growth.filter(|growth| !growth.still_layers || self.rotary(layer).is_none())
    }

    /// The gated delta net that a layer has in place of attention, if any.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).gated_delta_of(0), None);
    /// ```
    pub fn gated_delta_of(&self, layer: usize) -> Option<GatedDelta> {
        match *self.mixer(layer) {
            MixerConfig::GatedDeltaNet(net) => Some(net),
            _ => None,
        }
    }

    /// The Mamba 2 state space that a layer has in place of attention or beside it, if any.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).state_space_of(0), None);
    /// ```
    pub fn state_space_of(&self, layer: usize) -> Option<StateSpace> {
        match *self.mixer(layer) {
            MixerConfig::Mamba2(space) | MixerConfig::AttentionAndMamba2(_, space) => Some(space),
            _ => None,
        }
    }

    /// The short convolution that a layer has in place of attention, if any.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).short_conv_of(0), None);
    /// ```
    pub fn short_conv_of(&self, layer: usize) -> Option<ShortConv> {
        match *self.mixer(layer) {
            MixerConfig::ShortConvolution(conv) => Some(conv),
            _ => None,
        }
    }

    /// Whether layer `layer` has attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert!(TransformerConfig::new(2, 64, 4, 100, 32).attends(1));
    /// ```
    pub fn attends(&self, layer: usize) -> bool {
        self.mixer(layer).attention().is_some()
    }

    /// Whether any layer has a recurrent state.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.has_state())
    }

    /// Whether layer `layer` has a token mixer.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{MixerConfig, MlpConfig};
    /// // As in Nemotron-H: a layer with only attention, then a layer with only an MLP.
    /// let mut config = TransformerConfig::new(2, 32, 4, 100, 32);
    /// config.layers[0].mlp = MlpConfig::None;
    /// config.layers[1].mixer = MixerConfig::None;
    /// assert_eq!((config.mixes(0), config.has_mlp(0)), (true, false));
    /// assert_eq!((config.mixes(1), config.has_mlp(1)), (false, true));
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], "*hook_{attn,mlp}_out")?;
    /// assert_eq!(cache.names().collect::<Vec<_>>(), ["blocks.0.hook_attn_out", "blocks.1.hook_mlp_out"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn mixes(&self, layer: usize) -> bool {
        *self.mixer(layer) != MixerConfig::None
    }

    /// Whether layer `layer` has an MLP or a mixture of experts.
    pub fn has_mlp(&self, layer: usize) -> bool {
        self.mlp(layer) != MlpConfig::None
    }

    /// The layers that have an MLP or a mixture of experts.
    pub fn mlp_layers(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers()).filter(|layer| self.has_mlp(*layer))
    }

    /// The layers that have attention.
    pub fn attending(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers()).filter(|layer| self.attends(*layer))
    }

    /// The earlier layer whose keys and values layer `layer` reuses, if any.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_shared_keys([None, Some(0)])?;
    /// assert_eq!((config.reads_keys_of(0), config.reads_keys_of(1)), (None, Some(0)));
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// assert!(model.weights().get::<2>("blocks.1.attn.W_K").is_err()); // it has no keys of its own
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn reads_keys_of(&self, layer: usize) -> Option<usize> {
        self.mixer(layer).attention()?.keys_of
    }

    /// Whether any layer reuses the keys and values of an earlier one.
    pub fn shares_keys(&self) -> bool {
        self.attending().any(|layer| self.reads_keys_of(layer).is_some())
    }

    /// Number of key/value heads in a layer; 0 if it has no attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_kv_heads(2);
    /// assert_eq!(config.n_kv_heads_of(1), 2);
    /// ```
    pub fn n_kv_heads_of(&self, layer: usize) -> usize {
        self.mixer(layer).attention().map_or(0, |own| own.n_kv_heads)
    }

    /// Width of a layer's query and key heads; 0 if it has no attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_head_of(1), 16);
    /// ```
    pub fn d_head_of(&self, layer: usize) -> usize {
        self.mixer(layer).attention().map_or(0, |own| own.d_head)
    }

    /// Width of a layer's value heads: the same as for keys, except in latent attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_value_of(1), 16);
    /// ```
    pub fn d_value_of(&self, layer: usize) -> usize {
        self.latent.map_or(self.d_head_of(layer), |latent| latent.d_value)
    }

    /// Number of elements that a key-value cache holds per position, over all layers. Recurrent states are not counted,
    /// because their size does not depend on the number of positions.
    pub fn cached_elements(&self) -> usize {
        let own = |layer: &usize| self.reads_keys_of(*layer).is_none();
        let of_layer = |layer| self.n_kv_heads_of(layer).saturating_mul(self.d_head_of(layer) + self.d_value_of(layer));
        (0..self.n_layers()).filter(own).map(of_layer).fold(0, usize::saturating_add)
    }

    /// Maximum width over all layers of key heads and of value heads.
    pub fn widest_heads(&self) -> [usize; 2] {
        let widest = |of: &dyn Fn(usize) -> usize| (0..self.n_layers()).map(of).max().unwrap_or(0);
        [widest(&|layer| self.d_head_of(layer)), widest(&|layer| self.d_value_of(layer))]
    }

    /// The mixture of experts of layer `layer`, if it has one.
    ///
    /// ```
    /// use hooklens::{Experts, MlpConfig, TransformerConfig};
    /// let experts = Experts::new(8, 2);
    /// let mut config = TransformerConfig::new(2, 64, 4, 100, 32).with_experts(experts);
    /// config.layers[0].mlp = MlpConfig::Dense { d_mlp: 256 }; // a plain MLP in the first layer
    /// config.validate()?;
    /// assert_eq!((config.experts_of(0), config.experts_of(1)), (None, Some(experts)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn experts_of(&self, layer: usize) -> Option<Experts> {
        self.mlp(layer).experts()
    }

    /// Whether a layer's MLP, or its experts, are gated: the activation is multiplied by a second projection.
    pub fn is_gated(&self, layer: usize) -> bool {
        self.mlp(layer).is_gated()
    }

    /// Number of neurons in a layer's MLP, or in each of its experts.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_mlp_of(1), 256);
    /// ```
    pub fn d_mlp_of(&self, layer: usize) -> usize {
        self.mlp(layer).d_mlp()
    }

    /// Norm on the inputs of attention and the MLP; with [`ResidualScheme::NormalizedSums`], on the sums.
    ///
    /// ```
    /// use hooklens::{NormKind, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32);
    /// assert_eq!(config.pre_norm(), NormKind::LayerNorm);
    /// assert_eq!(config.with_pre_norms(false).pre_norm(), NormKind::None); // OLMo 2
    /// ```
    pub fn pre_norm(&self) -> NormKind {
        if self.pre_norms { self.norm } else { NormKind::None }
    }

    /// Norm on the input of a layer's token mixer; [`NormKind::None`] if it has no mixer.
    pub fn ln1_kind(&self, layer: usize) -> NormKind {
        if self.mixes(layer) { self.pre_norm() } else { NormKind::None }
    }

    /// Whether a block's output is not a plain sum of what was written to the residual stream, because it is normalized
    /// in between.
    ///
    /// ```
    /// use hooklens::{ResidualScheme, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_residual(ResidualScheme::NormalizedSums);
    /// assert!(config.stream_is_normalized());
    /// ```
    pub fn stream_is_normalized(&self) -> bool {
        matches!(self.residual, ResidualScheme::NormalizedSums | ResidualScheme::NormalizedInputs)
    }

    /// Whether blocks are a sequence of parts with only a norm before each, so that a layer can do without one of them.
    pub(super) fn is_plain_sequence(&self) -> bool {
        self.residual == ResidualScheme::Sequential
            && !self.post_norms
            && !self.layer_scalars
            && self.per_layer_inputs.is_none()
            && self.positional != Positional::Shortformer
    }

    /// Norm on the outputs of attention and the MLP. Its weights are never folded, because no linear map follows it.
    ///
    /// ```
    /// use hooklens::{NormKind, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_norm(NormKind::RmsPre);
    /// assert_eq!((config.pre_norm(), config.post_norm()), (NormKind::RmsPre, NormKind::Rms));
    /// ```
    pub fn post_norm(&self) -> NormKind {
        match self.norm {
            NormKind::LayerNormPre => NormKind::LayerNorm,
            NormKind::RmsPre => NormKind::Rms,
            norm => norm,
        }
    }

    /// The norm before the unembedding.
    ///
    /// ```
    /// use hooklens::{NormKind, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_final_rms(true);
    /// assert_eq!((config.pre_norm(), config.final_norm()), (NormKind::LayerNorm, NormKind::Rms));
    /// ```
    pub fn final_norm(&self) -> NormKind {
        match (self.final_rms, self.norm) {
            _ if self.no_final_norm => NormKind::None,
            (true, NormKind::LayerNorm) => NormKind::Rms,
            (true, NormKind::LayerNormPre) => NormKind::RmsPre,
            (_, norm) => norm,
        }
    }
}
