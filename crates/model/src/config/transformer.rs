//! [`TransformerConfig`]: fields, constructors, and per-layer values.

use serde::{Deserialize, Serialize};

use super::{
    ActivationFn, AttnExperts, Experts, GatedDelta, Latent, Mixer, NormKind, PerLayerInputs, Positional, QkNorm,
    QueryGrowth, Rotary, ShortConv, StateSpace, Window,
};

/// The sizes and architectural choices of a transformer.
///
/// Every model family maps to a value of this type, which fully determines the model. Start from
/// [`TransformerConfig::new`] and change what differs:
///
/// ```
/// use hooklens::{Positional, TransformerConfig};
/// let config = TransformerConfig {
///     attn_only: true,
///     positional: Positional::Shortformer,
///     ..TransformerConfig::new(2, 64, 4, 100, 32)
/// };
/// assert_eq!(config.d_head, 16);
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of attention heads.
    pub n_heads: usize,
    /// Number of key/value heads; fewer than `n_heads` means grouped-query attention.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Token mixer of each layer, for models whose layers differ (Gemma 4). Empty if all layers have attention with the
    /// sizes above.
    pub mixers: Vec<Mixer>,
    /// For each layer, the earlier layer whose keys and values it reuses, or `None` if it has its own (Gemma 4). Empty
    /// if all layers have their own.
    pub shared_keys: Vec<Option<usize>>,
    /// Number of neurons in the MLP, or in each expert of a mixture of experts.
    pub d_mlp: usize,
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
    /// Post-norm blocks as in BERT: the residual stream is normalized after each addition (OPT-350M, the first GPT).
    /// Attention and the MLP read the stream directly, and `ln1` and `ln2` are applied to the sums.
    pub residual_norms: bool,
    /// Whether the outputs of attention and the MLP are added to their normalized inputs instead of to the residual
    /// stream (Bloom's `apply_residual_connection_post_layernorm`).
    pub normalized_residual: bool,
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
    /// Per-layer rotary embeddings, `None` for layers without any (Gemma 3, SmolLM 3). Empty if all layers use the
    /// same.
    pub layer_rotary: Vec<Option<Rotary>>,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// Whether the MLP is gated: the activation is multiplied by a second projection.
    pub gated_mlp: bool,
    /// Whether blocks have no MLP.
    pub attn_only: bool,
    /// Whether attention and the MLP read the same residual stream (GPT-J, Pythia).
    pub parallel: bool,
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
    /// Attention window of each layer; `None` for full attention. Empty if no layer has a window.
    pub windows: Vec<Option<Window>>,
    /// Mixture of experts in place of the MLP.
    pub experts: Option<Experts>,
    /// In a mixture-of-experts model: for each layer, the width of the dense MLP that it has instead, or `None` if it
    /// has experts (DeepSeek); empty if all layers have experts. In other models: the MLP width of layers that differ
    /// from `d_mlp` (Gemma 4). A layer with 0 neurons has no MLP (Nemotron-H).
    pub dense_mlps: Vec<Option<usize>>,
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
    /// assert_eq!((config.d_head, config.d_mlp, config.n_kv_heads), (16, 256, 4));
    /// // If `n_heads` does not divide `d_model`, set `d_head` and `attn_scale`.
    /// let message = TransformerConfig::new(1, 15, 2, 100, 32).validate().unwrap_err().to_string();
    /// assert_eq!(message, "invalid `n_heads`: 2 heads do not divide a d_model of 15; set d_head and attn_scale");
    /// ```
    pub fn new(n_layers: usize, d_model: usize, n_heads: usize, d_vocab: usize, n_ctx: usize) -> Self {
        let shares = n_heads > 0 && d_model.is_multiple_of(n_heads);
        let d_head = if shares { d_model / n_heads } else { 0 };
        Self {
            n_layers,
            d_model,
            n_heads,
            n_kv_heads: n_heads,
            d_head,
            mixers: Vec::new(),
            shared_keys: Vec::new(),
            d_mlp: d_model.saturating_mul(4),
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
            residual_norms: false,
            normalized_residual: false,
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
            layer_rotary: Vec::new(),
            activation: ActivationFn::GeluNew,
            gated_mlp: false,
            attn_only: false,
            parallel: false,
            attn_scale: (d_head as f64).sqrt(),
            scale_attn_by_inverse_layer_idx: false,
            attn_scores_soft_cap: None,
            output_logits_soft_cap: None,
            bidirectional: false,
            windows: Vec::new(),
            experts: None,
            dense_mlps: Vec::new(),
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
    /// assert_eq!((config.n_layers, config.d_model, config.d_vocab), (12, 768, 50_257));
    /// ```
    pub fn gpt2_small() -> Self {
        Self::new(12, 768, 12, 50257, 1024)
    }

    /// Attention window of a layer, if any.
    ///
    /// ```
    /// use hooklens::{TransformerConfig, Window};
    /// let windows = vec![Some(Window::Sliding(4)), None]; // one per layer
    /// let config = TransformerConfig { windows, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!((config.window(0), config.window(1)), (Some(Window::Sliding(4)), None));
    /// ```
    pub fn window(&self, layer: usize) -> Option<Window> {
        self.windows.get(layer).copied().flatten()
    }

    /// Divisor of a layer's attention scores.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32);
    /// assert_eq!(config.score_divisor(1), 4.0); // the square root of `d_head`, 16
    /// let by_layer = TransformerConfig { scale_attn_by_inverse_layer_idx: true, ..config };
    /// assert_eq!(by_layer.score_divisor(1), 8.0);
    /// ```
    pub fn score_divisor(&self, layer: usize) -> f64 {
        let by_layer = if self.scale_attn_by_inverse_layer_idx { (layer + 1) as f64 } else { 1.0 };
        self.attn_scale * by_layer
    }

    /// Rotary embeddings of a layer, if any.
    ///
    /// ```
    /// use hooklens::{Positional, RopeScaling, Rotary, TransformerConfig};
    /// let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
    /// let config = TransformerConfig {
    ///     positional: Positional::Rotary(rotary.clone()),
    ///     layer_rotary: vec![Some(rotary.clone()), None], // the second layer has no rotary embeddings
    ///     ..TransformerConfig::new(2, 64, 4, 100, 32)
    /// };
    /// assert_eq!((config.rotary(0), config.rotary(1)), (Some(&rotary), None));
    /// ```
    pub fn rotary(&self, layer: usize) -> Option<&Rotary> {
        match &self.positional {
            Positional::Rotary(rotary) if self.layer_rotary.is_empty() => Some(rotary),
            Positional::Rotary(_) => self.layer_rotary.get(layer)?.as_ref(),
            _ => None,
        }
    }

    /// Query and key norms of a layer, if any.
    ///
    /// ```
    /// use hooklens::{QkNorm, TransformerConfig};
    /// let qk_norm = Some(QkNorm { rotating_layers: true, ..QkNorm::HEADS });
    /// let config = TransformerConfig { qk_norm, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!(config.qk_norm_of(0), None); // positions are learned, so no layer is rotary
    /// ```
    pub fn qk_norm_of(&self, layer: usize) -> Option<QkNorm> {
        self.qk_norm.filter(|norm| !norm.rotating_layers || self.rotary(layer).is_some())
    }

    /// Position-dependent query scaling of a layer, if any.
    ///
    /// ```
    /// use hooklens::{QueryGrowth, TransformerConfig};
    /// let query_growth = Some(QueryGrowth { rate: 0.1, context: 16, ahead: 0, still_layers: false });
    /// let config = TransformerConfig { query_growth, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!(config.query_growth_of(1), query_growth);
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
        match self.mixers.get(layer) {
            Some(Mixer::GatedDelta(net)) => Some(*net),
            _ => None,
        }
    }

    /// The Mamba 2 state space that a layer has in place of attention, if any.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).state_space_of(0), None);
    /// ```
    pub fn state_space_of(&self, layer: usize) -> Option<StateSpace> {
        match self.mixers.get(layer) {
            Some(Mixer::StateSpace(space)) => Some(*space),
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
        match self.mixers.get(layer) {
            Some(Mixer::ShortConv(conv)) => Some(*conv),
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
        matches!(self.mixers.get(layer), None | Some(Mixer::Attention { .. }))
    }

    /// Whether any layer has a recurrent state instead of keys and values.
    pub fn has_states(&self) -> bool {
        self.mixers
            .iter()
            .any(|mixer| matches!(mixer, Mixer::GatedDelta(_) | Mixer::ShortConv(_) | Mixer::StateSpace(_)))
    }

    /// Whether layer `layer` has a token mixer.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Mixer, NormKind};
    /// // As in Nemotron-H: a layer with only attention, then a layer with only an MLP.
    /// let mixers = vec![Mixer::Attention { n_kv_heads: 4, d_head: 8 }, Mixer::None];
    /// let dense_mlps = vec![Some(0), None];
    /// let config = TransformerConfig { mixers, dense_mlps, ..TransformerConfig::new(2, 32, 4, 100, 32) };
    /// assert_eq!((config.mixes(0), config.has_mlp(0)), (true, false));
    /// assert_eq!((config.mixes(1), config.has_mlp(1)), (false, true));
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], "*hook_{attn,mlp}_out")?;
    /// assert_eq!(cache.names().collect::<Vec<_>>(), ["blocks.0.hook_attn_out", "blocks.1.hook_mlp_out"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn mixes(&self, layer: usize) -> bool {
        !matches!(self.mixers.get(layer), Some(Mixer::None))
    }

    /// Whether layer `layer` has an MLP or a mixture of experts.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig { dense_mlps: vec![None, Some(0)], ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!((config.has_mlp(0), config.has_mlp(1)), (true, false));
    /// ```
    pub fn has_mlp(&self, layer: usize) -> bool {
        !self.attn_only && self.dense_mlp(layer) != Some(0)
    }

    /// The layers that have an MLP or a mixture of experts.
    pub fn with_mlps(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers).filter(|layer| self.has_mlp(*layer))
    }

    /// The layers that have attention.
    pub fn attending(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers).filter(|layer| self.attends(*layer))
    }

    /// The earlier layer whose keys and values layer `layer` reuses, if any.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let config =
    ///     TransformerConfig { shared_keys: vec![None, Some(0)], ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!((config.reads_keys_of(0), config.reads_keys_of(1)), (None, Some(0)));
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let attn = model.weights.blocks[1].attn.as_ref();
    /// assert_eq!(attn.map(|attn| attn.k.weight.val().dims()), Some([64, 0]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn reads_keys_of(&self, layer: usize) -> Option<usize> {
        self.shared_keys.get(layer).copied().flatten()
    }

    /// Number of key/value heads in a layer; 0 if it has no attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig { n_kv_heads: 2, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!(config.n_kv_heads_of(1), 2);
    /// ```
    pub fn n_kv_heads_of(&self, layer: usize) -> usize {
        match self.mixers.get(layer) {
            Some(Mixer::Attention { n_kv_heads, .. }) => *n_kv_heads,
            Some(_) => 0,
            None => self.n_kv_heads,
        }
    }

    /// Width of a layer's query and key heads; 0 if it has no attention.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_head_of(1), 16);
    /// ```
    pub fn d_head_of(&self, layer: usize) -> usize {
        match self.mixers.get(layer) {
            Some(Mixer::Attention { d_head, .. }) => *d_head,
            Some(_) => 0,
            None => self.d_head,
        }
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
        (0..self.n_layers).filter(own).map(of_layer).fold(0, usize::saturating_add)
    }

    /// Maximum width over all layers of key heads and of value heads.
    pub fn widest_heads(&self) -> [usize; 2] {
        let widest = |of: &dyn Fn(usize) -> usize| (0..self.n_layers).map(of).max().unwrap_or(0);
        [widest(&|layer| self.d_head_of(layer)), widest(&|layer| self.d_value_of(layer))]
    }

    /// The mixture of experts of layer `layer`, if it has one.
    ///
    /// ```
    /// use hooklens::{Experts, TransformerConfig};
    /// let experts = Some(Experts::new(8, 2));
    /// let dense_mlps = vec![Some(256), None]; // a plain MLP in the first layer
    /// let config =
    ///     TransformerConfig { experts, gated_mlp: true, dense_mlps, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// config.validate()?;
    /// assert_eq!((config.experts_of(0), config.experts_of(1)), (None, experts));
    /// assert_eq!(config.d_mlp_of(0), 256);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn experts_of(&self, layer: usize) -> Option<Experts> {
        self.experts.filter(|_| !self.attn_only && self.dense_mlp(layer).is_none())
    }

    /// Number of neurons in a layer's MLP, or in each of its experts.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_mlp_of(1), 256);
    /// ```
    pub fn d_mlp_of(&self, layer: usize) -> usize {
        self.dense_mlp(layer).unwrap_or(self.d_mlp)
    }

    fn dense_mlp(&self, layer: usize) -> Option<usize> {
        self.dense_mlps.get(layer).copied().flatten()
    }

    /// Norm on the inputs of attention and the MLP; with `residual_norms`, on the sums.
    ///
    /// ```
    /// use hooklens::{NormKind, TransformerConfig};
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32);
    /// assert_eq!(config.pre_norm(), NormKind::LayerNorm);
    /// assert_eq!(TransformerConfig { pre_norms: false, ..config }.pre_norm(), NormKind::None); // OLMo 2
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
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig { residual_norms: true, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert!(config.stream_is_normalized());
    /// ```
    pub fn stream_is_normalized(&self) -> bool {
        self.residual_norms || self.normalized_residual
    }

    /// Norm on the outputs of attention and the MLP. Its weights are never folded, because no linear map follows it.
    ///
    /// ```
    /// use hooklens::{NormKind, TransformerConfig};
    /// let config = TransformerConfig { norm: NormKind::RmsPre, ..TransformerConfig::new(2, 64, 4, 100, 32) };
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
    /// let config = TransformerConfig { final_rms: true, ..TransformerConfig::new(2, 64, 4, 100, 32) };
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
