//! The type itself: its fields, constructors and per-layer values.

use serde::{Deserialize, Serialize};

use super::{
    ActivationFn, AttnExperts, Experts, GatedDelta, Latent, Mixer, NormKind, PerLayerInputs, Positional, QkNorm,
    QueryGrowth, Rotary, ShortConv, StateSpace, Window,
};

/// The shape and the choices of a transformer.
///
/// Every family is a value of this type; the model reads nothing else. Start from
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
    /// Attention heads.
    pub n_heads: usize,
    /// Heads of keys and values; fewer than `n_heads` is grouped-query attention.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// What each layer has between positions, where layers differ (Gemma 4). Empty when all have attention of the sizes above.
    pub mixers: Vec<Mixer>,
    /// For each layer the earlier one whose keys and values it reads, or `None` where it has its own (Gemma 4). Empty
    /// when all have.
    pub shared_keys: Vec<Option<usize>>,
    /// Neurons of the MLP (of one expert, in a mixture).
    pub d_mlp: usize,
    /// Tokens of the vocabulary.
    pub d_vocab: usize,
    /// Rows of the logits; usually `d_vocab`, and 0 for a model without an unembedding.
    pub d_vocab_out: usize,
    /// Longest sequence the model was made for. Only learned positions enforce it.
    pub n_ctx: usize,
    /// Norm before attention, before the MLP and before the unembedding.
    pub norm: NormKind,
    /// Added to the variance (or mean square) inside a norm.
    pub eps: f64,
    /// The same inside the last norm, where it differs (JetMoE).
    pub final_eps: Option<f64>,
    /// Whether the last norm is an RMS norm although the others center.
    pub final_rms: bool,
    /// Whether the embedding is normalized (Bloom).
    pub post_embedding_norm: bool,
    /// Token vectors are multiplied by this (Gemma, Granite).
    pub embed_scale: Option<f64>,
    /// Whether attention and the MLP read the stream through a norm; without, they have norms of
    /// their outputs only (OLMo 2).
    pub pre_norms: bool,
    /// Whether attention's and the MLP's outputs are normalized too (Gemma 2).
    pub post_norms: bool,
    /// Whether the stream is normalized behind each addition, as BERT's is (OPT-350M, the first GPT): attention and
    /// the MLP read it as it is, and `ln1` and `ln2` stand behind the sums.
    pub residual_norms: bool,
    /// Whether attention's and the MLP's outputs are added to what they read, normalized, and not to the stream
    /// (Bloom's `apply_residual_connection_post_layernorm`).
    pub normalized_residual: bool,
    /// Whether there is no norm before the unembedding.
    pub no_final_norm: bool,
    /// How queries and keys are normalized, if they are (Qwen 3).
    pub qk_norm: Option<QkNorm>,
    /// Exponent of ALiBi's last slope, `2^-alibi_bias_max`: 8, or 16 in MPT StoryWriter. With
    /// [`Positional::Alibi`](super::Positional::Alibi) only.
    pub alibi_bias_max: f64,
    /// Bounds `[-clip, clip]` within which queries, keys and values are kept (OLMo): values and queries and keys as
    /// they are projected, or, where these are normalized before their rotation, as the norm leaves them.
    pub qkv_clip: Option<f64>,
    /// How queries, rotated, grow with their position, if they do (Ministral 3).
    pub query_growth: Option<QueryGrowth>,
    /// Whether each head has a learned score that takes its share of attention and gives nothing for it
    /// (GPT-OSS), so that a row of the pattern sums to less than one.
    pub attn_sinks: bool,
    /// Whether what heads give is multiplied by the sigmoid of a gate that is made of the stream (Qwen 3 Next).
    pub attn_gates: bool,
    /// Experts of attention, of which each token's heads are (JetMoE).
    pub attn_experts: Option<AttnExperts>,
    /// Latents that keys, values and queries are made from (DeepSeek V2).
    pub latent: Option<Latent>,
    /// How many keys a query sees at most, by the choice of an index that is not part of the model here (DeepSeek V3.2): in
    /// longer sequences some would be left out, so that they are refused.
    pub most_keys: Option<usize>,
    /// Position embedding.
    pub positional: Positional,
    /// For each layer of a rotary model its own rotation, or `None` where it rotates nothing
    /// (Gemma 3, SmolLM 3). Empty when all layers rotate alike.
    pub layer_rotary: Vec<Option<Rotary>>,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// Whether the MLP multiplies the activation by a second projection.
    pub gated_mlp: bool,
    /// Whether blocks have no MLP.
    pub attn_only: bool,
    /// Whether attention and the MLP read the same residual stream (GPT-J, Pythia).
    pub parallel: bool,
    /// Attention scores are divided by this; usually the root of `d_head`.
    pub attn_scale: f64,
    /// Whether scores are divided by the layer's number (from one) as well.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// `cap * tanh(score / cap)` on attention scores.
    pub attn_scores_soft_cap: Option<f64>,
    /// `cap * tanh(logit / cap)` on logits.
    pub output_logits_soft_cap: Option<f64>,
    /// Whether a query attends to later keys too.
    pub bidirectional: bool,
    /// For each layer how far back a query sees; `None` for all the way. Empty when no layer has a
    /// window.
    pub windows: Vec<Option<Window>>,
    /// A mixture of experts in place of the MLP.
    pub experts: Option<Experts>,
    /// For each layer of a model of mixtures the neurons of the MLP it has instead, or `None` where it is a mixture
    /// (DeepSeek). Empty when all layers are mixtures. In a model without, the neurons of layers whose MLP is not as
    /// wide as `d_mlp` (Gemma 4). A layer with 0 neurons has no MLP (Nemotron-H).
    pub dense_mlps: Vec<Option<usize>>,
    /// Vectors of tokens that each layer reads behind its MLP (Gemma 4).
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Whether the stream behind each block is multiplied by a number of the block's own (Gemma 4).
    pub layer_scalars: bool,
    /// Whether text gets a beginning-of-sequence token unless told otherwise.
    pub default_prepend_bos: bool,
}

impl TransformerConfig {
    /// A GPT-2-like model: layer norm, learned positions, an MLP four times as wide.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32); // layers, width, heads, vocabulary, positions
    /// assert_eq!((config.d_head, config.d_mlp, config.n_kv_heads), (16, 256, 4));
    /// // Where the heads can't share the width, `d_head` and `attn_scale` are left to be set.
    /// let told = TransformerConfig::new(1, 15, 2, 100, 32).validate().unwrap_err().to_string();
    /// assert_eq!(told, "`n_heads` does not fit: 2 heads can't share a d_model of 15; set d_head and attn_scale");
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

    /// GPT-2 small's shape: 12 layers of 768, 12 heads, 50,257 tokens, 1,024 positions.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::gpt2_small();
    /// assert_eq!((config.n_layers, config.d_model, config.d_vocab), (12, 768, 50_257));
    /// ```
    pub fn gpt2_small() -> Self {
        Self::new(12, 768, 12, 50257, 1024)
    }

    /// How far back layer `layer` sees, if not all the way.
    ///
    /// ```
    /// use hooklens::{TransformerConfig, Window};
    /// let windows = vec![Some(Window::Sliding(4)), None]; // a layer each
    /// let config = TransformerConfig { windows, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!((config.window(0), config.window(1)), (Some(Window::Sliding(4)), None));
    /// ```
    pub fn window(&self, layer: usize) -> Option<Window> {
        self.windows.get(layer).copied().flatten()
    }

    /// Number that layer `layer`'s attention scores are divided by.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig::new(2, 64, 4, 100, 32);
    /// assert_eq!(config.score_divisor(1), 4.0); // the root of 16
    /// let by_layer = TransformerConfig { scale_attn_by_inverse_layer_idx: true, ..config };
    /// assert_eq!(by_layer.score_divisor(1), 8.0);
    /// ```
    pub fn score_divisor(&self, layer: usize) -> f64 {
        let by_layer = if self.scale_attn_by_inverse_layer_idx { (layer + 1) as f64 } else { 1.0 };
        self.attn_scale * by_layer
    }

    /// How layer `layer` rotates queries and keys, if it does.
    ///
    /// ```
    /// use hooklens::{Positional, RopeScaling, Rotary, TransformerConfig};
    /// let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
    /// let config = TransformerConfig {
    ///     positional: Positional::Rotary(rotary.clone()),
    ///     layer_rotary: vec![Some(rotary.clone()), None], // the second layer rotates nothing
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

    /// How layer `layer` normalizes queries and keys, if it does.
    ///
    /// ```
    /// use hooklens::{QkNorm, TransformerConfig};
    /// let qk_norm = Some(QkNorm { rotating_layers: true, ..QkNorm::HEADS });
    /// let config = TransformerConfig { qk_norm, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert_eq!(config.qk_norm_of(0), None); // its positions are learned, so that no layer rotates
    /// ```
    pub fn qk_norm_of(&self, layer: usize) -> Option<QkNorm> {
        self.qk_norm.filter(|norm| !norm.rotating_layers || self.rotary(layer).is_some())
    }

    /// How layer `layer`'s queries grow with their position, if they do.
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

    /// The gated delta net that layer `layer` has in place of attention.
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

    /// The state space that layer `layer` has in place of attention.
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

    /// The short convolution that layer `layer` has in place of attention.
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

    /// Whether some layer has a state in place of keys and values.
    pub fn has_states(&self) -> bool {
        self.mixers
            .iter()
            .any(|mixer| matches!(mixer, Mixer::GatedDelta(_) | Mixer::ShortConv(_) | Mixer::StateSpace(_)))
    }

    /// Whether something moves information between positions in layer `layer`.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Mixer, NormKind};
    /// // As Nemotron-H has them: attention alone, then an MLP alone.
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

    /// The earlier layer whose keys and values layer `layer` reads, if it has none of its own.
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

    /// Layer `layer`'s heads of keys and values; 0 where it has no attention.
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

    /// Width of layer `layer`'s heads: of their queries and keys; 0 where it has no attention.
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

    /// Width of the values of layer `layer`'s heads: that of their keys, unless they are made from a latent.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// assert_eq!(TransformerConfig::new(2, 64, 4, 100, 32).d_value_of(1), 16);
    /// ```
    pub fn d_value_of(&self, layer: usize) -> usize {
        self.latent.map_or(self.d_head_of(layer), |latent| latent.d_value)
    }

    /// Numbers that a cache holds for one position, of all layers; a state's are the same for all positions.
    pub fn cached_elements(&self) -> usize {
        let own = |layer: &usize| self.reads_keys_of(*layer).is_none();
        let of_layer = |layer| self.n_kv_heads_of(layer).saturating_mul(self.d_head_of(layer) + self.d_value_of(layer));
        (0..self.n_layers).filter(own).map(of_layer).fold(0, usize::saturating_add)
    }

    /// The widest of all layers' heads of keys, and of values.
    pub fn widest_heads(&self) -> [usize; 2] {
        let widest = |of: &dyn Fn(usize) -> usize| (0..self.n_layers).map(of).max().unwrap_or(0);
        [widest(&|layer| self.d_head_of(layer)), widest(&|layer| self.d_value_of(layer))]
    }

    /// Layer `layer`'s mixture of experts, if it is one.
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

    /// Neurons of layer `layer`'s MLP, or of each of its experts.
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

    /// The norm that attention and the MLP read through; with `residual_norms`, of the sums.
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

    /// The norm that what stands between positions in layer `layer` reads through; none where nothing does.
    pub fn ln1_kind(&self, layer: usize) -> NormKind {
        if self.mixes(layer) { self.pre_norm() } else { NormKind::None }
    }

    /// Whether the stream that a block passes on is not the sum of what was written to it, as a norm stands between.
    ///
    /// ```
    /// use hooklens::TransformerConfig;
    /// let config = TransformerConfig { residual_norms: true, ..TransformerConfig::new(2, 64, 4, 100, 32) };
    /// assert!(config.stream_is_normalized());
    /// ```
    pub fn stream_is_normalized(&self) -> bool {
        self.residual_norms || self.normalized_residual
    }

    /// The norm of attention's and the MLP's outputs: its weights are never folded, for no linear
    /// map stands behind it.
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
