//! The configuration of a transformer: its architecture as independent choices, one field each.
//!
//! ```
//! use hooklens::prelude::*;
//! use hooklens::{ActivationFn, NormKind, Positional, RopeScaling, Rotary};
//! // A small model of Llama's kind.
//! let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
//! let config = TransformerConfig {
//!     norm: NormKind::Rms,
//!     positional: Positional::Rotary(rotary),
//!     activation: ActivationFn::Silu,
//!     gated_mlp: true,
//!     n_kv_heads: 2,
//!     ..TransformerConfig::new(2, 64, 4, 100, 32)
//! };
//! let model = HookedTransformer::random(config, 0, &Device::flex())?;
//! assert_eq!(model.record([1, 2, 3], "k0")?.get(hook::k(0))?.dims(), [1, 3, 2, 16]);
//! # Ok::<(), hooklens::Error>(())
//! ```

mod error;

use serde::{Deserialize, Serialize};

pub use error::ConfigError;

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
    /// Neurons of the MLP (of one expert, in a mixture).
    pub d_mlp: usize,
    /// Tokens of the vocabulary.
    pub d_vocab: usize,
    /// Rows of the logits; usually `d_vocab`.
    pub d_vocab_out: usize,
    /// Longest sequence the model was made for. Only learned positions enforce it.
    pub n_ctx: usize,
    /// Norm before attention, before the MLP and before the unembedding.
    pub norm: NormKind,
    /// Added to the variance (or mean square) inside a norm.
    pub eps: f64,
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
    /// Whether queries and keys are RMS-normalized before rotation, head by head (Qwen 3).
    pub qk_norm: bool,
    /// Whether that norm is over all heads at once (OLMo 2).
    pub qk_norm_whole: bool,
    /// Whether each head has a learned score that takes its share of attention and gives nothing for it
    /// (GPT-OSS), so that a row of the pattern sums to less than one.
    pub attn_sinks: bool,
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
    /// Whether text gets a beginning-of-sequence token unless told otherwise.
    pub default_prepend_bos: bool,
}

/// How far back a query sees. Padding takes no room in a window.
///
/// ```
/// use hooklens::Window;
/// assert_eq!((0..6).map(|at| Window::Sliding(3).oldest(at)).collect::<Vec<_>>(), [0, 0, 0, 1, 2, 3]);
/// assert_eq!((0..6).map(|at| Window::Chunked(3).oldest(at)).collect::<Vec<_>>(), [0, 0, 0, 3, 3, 3]);
/// assert_eq!(Window::Sliding(3).width(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Window {
    /// This many positions, its own included (Mistral).
    Sliding(usize),
    /// From the last multiple of this many positions on (Llama 4).
    Chunked(usize),
}

impl Window {
    /// The oldest position that a query at `position` sees.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Sliding(4).oldest(10), 7); // it sees 7, 8, 9 and itself
    /// ```
    pub fn oldest(self, position: usize) -> usize {
        match self {
            Window::Sliding(width) => (position + 1).saturating_sub(width),
            Window::Chunked(width) => position / width.max(1) * width,
        }
    }

    /// Positions in it.
    ///
    /// ```
    /// use hooklens::Window;
    /// assert_eq!(Window::Chunked(8192).width(), 8192);
    /// ```
    pub fn width(self) -> usize {
        match self {
            Window::Sliding(width) | Window::Chunked(width) => width,
        }
    }
}

/// Which norm, and whether it has weights of its own.
///
/// ```
/// use hooklens::NormKind;
/// assert!(NormKind::LayerNorm.centers() && !NormKind::Rms.centers());
/// assert_eq!(NormKind::LayerNorm.folded(), NormKind::LayerNormPre); // its weight is in the maps behind it
/// assert!(!NormKind::LayerNormPre.has_weight());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NormKind {
    /// Centers, scales, then multiplies and adds its weights.
    LayerNorm,
    /// Centers and scales; the weights were folded into the next layer.
    LayerNormPre,
    /// Scales by the root mean square, then multiplies by its weight.
    Rms,
    /// Scales by the root mean square; the weight was folded into the next layer.
    RmsPre,
    /// No norm.
    None,
}

impl NormKind {
    /// Whether the norm subtracts the mean.
    ///
    /// ```
    /// use hooklens::NormKind;
    /// assert!(NormKind::LayerNormPre.centers() && !NormKind::RmsPre.centers());
    /// ```
    pub fn centers(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::LayerNormPre)
    }

    /// Whether the norm has a weight to multiply by.
    ///
    /// ```
    /// use hooklens::NormKind;
    /// assert!(NormKind::Rms.has_weight() && !NormKind::RmsPre.has_weight() && !NormKind::None.has_weight());
    /// ```
    pub fn has_weight(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::Rms)
    }

    /// The same norm without weights.
    ///
    /// ```
    /// use hooklens::NormKind;
    /// assert_eq!((NormKind::Rms.folded(), NormKind::None.folded()), (NormKind::RmsPre, NormKind::None));
    /// ```
    pub fn folded(self) -> Self {
        match self {
            NormKind::LayerNorm | NormKind::LayerNormPre => NormKind::LayerNormPre,
            NormKind::Rms | NormKind::RmsPre => NormKind::RmsPre,
            NormKind::None => NormKind::None,
        }
    }
}

/// How a token's position enters the model.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::Positional;
/// let has_vectors = |positional| {
///     let config = TransformerConfig { positional, ..TransformerConfig::new(1, 16, 2, 20, 8) };
///     Ok::<_, hooklens::Error>(HookedTransformer::random(config, 0, &Device::flex())?.w_pos().is_some())
/// };
/// assert!(has_vectors(Positional::Learned)? && !has_vectors(Positional::Alibi)?);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Positional {
    /// A learned vector for each position, added to the embedding.
    Learned,
    /// Queries and keys are rotated by their position.
    Rotary(Rotary),
    /// ALiBi (Press et al. 2021): scores fall off linearly with distance, with a slope for each head.
    Alibi,
    /// A learned vector for each position, added to what queries and keys read, never to the stream
    /// (Press et al. 2020).
    Shortformer,
    /// No position information.
    None,
}

/// Rotary position embedding (Su et al. 2021).
///
/// ```
/// use hooklens::{Positional, RopeScaling, Rotary, TransformerConfig};
/// let rotary = Rotary { dim: 8, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
/// let config = TransformerConfig {
///     positional: Positional::Rotary(rotary.clone()),
///     ..TransformerConfig::new(2, 64, 4, 100, 32)
/// };
/// assert_eq!(config.rotary(1), Some(&rotary)); // half of each head of 16 turns
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    /// Coordinates of a head that are rotated, the first ones; the rest pass.
    pub dim: usize,
    /// Base of the wavelengths.
    pub base: f64,
    /// Whether pairs are neighbors (GPT-J) rather than halves apart (NeoX, Llama).
    pub adjacent_pairs: bool,
    /// Change of the wavelengths for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary wavelengths are stretched for longer contexts.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Positional, RopeScaling, Rotary};
/// let model = |scaling| {
///     let rotary = Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling };
///     let positional = Positional::Rotary(rotary);
///     let config = TransformerConfig { positional, ..TransformerConfig::new(1, 16, 2, 20, 64) };
///     HookedTransformer::random(config, 0, &Device::flex())
/// };
/// let [near, far] = [model(RopeScaling::None)?, model(RopeScaling::Linear { factor: 4.0 })?];
/// let [near, far] = [near, far].map(|model| model.record([1, 2, 3], "rot_k0"));
/// let gap = near?.get(hook::rot_k(0))? - far?.get(hook::rot_k(0))?;
/// assert!(gap.abs().max().into_scalar::<f32>() > 0.0); // keys turn less
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All wavelengths times `factor`.
    Linear {
        /// How many times longer.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths times `factor`, short ones kept, a ramp between.
    Llama3 {
        /// How many times longer.
        factor: f64,
        /// Wavelengths over `original_context / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
    /// YaRN: a ramp over dimensions, and rotated vectors times `attention_factor`.
    Yarn {
        /// How many times longer.
        factor: f64,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Rotations within the original context over which a dimension is kept.
        beta_fast: f64,
        /// Rotations within the original context under which a dimension is stretched.
        beta_slow: f64,
        /// Context length before stretching.
        original_context: usize,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Phi 3): every wavelength times a factor of its own, another one when the text is longer
    /// than the original context, and rotated vectors times `attention_factor`.
    Long {
        /// A factor for each rotated pair, within the original context.
        short_factor: Vec<f64>,
        /// A factor for each rotated pair, beyond it.
        long_factor: Vec<f64>,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
}

/// The MLP's activation function.
///
/// ```
/// use hooklens::ActivationFn;
/// assert_eq!(ActivationFn::from_name("gelu_pytorch_tanh")?, ActivationFn::GeluNew);
/// assert_eq!(ActivationFn::GeluNew.name(), "gelu_new");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ActivationFn {
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)`, by the error function.
    Gelu,
    /// The tanh approximation of GPT-2 (also `gelu_fast` and `gelu_pytorch_tanh`, which differ
    /// from it by rounding only).
    GeluNew,
    /// `x sigmoid(x)`.
    Silu,
    /// `x softmax(x)`.
    Solu,
    /// `x softmax(x)`, then a layer norm over neurons.
    SoluLn,
}

impl ActivationFn {
    /// Reads a name as TransformerLens and Hugging Face spell it.
    ///
    /// ```
    /// use hooklens::ActivationFn;
    /// assert_eq!(ActivationFn::from_name("silu")?, ActivationFn::Silu);
    /// assert!(ActivationFn::from_name("sillu").unwrap_err().to_string().contains("silu")); // the names known
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::UnknownValue`] listing the known names.
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        match name {
            "relu" => Ok(Self::Relu),
            "gelu" | "gelu_python" => Ok(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => Ok(Self::GeluNew),
            "silu" | "swish" => Ok(Self::Silu),
            "solu" => Ok(Self::Solu),
            "solu_ln" => Ok(Self::SoluLn),
            other => Err(ConfigError::UnknownValue {
                field: "activation",
                given: other.to_string(),
                known: "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, solu, solu_ln",
            }),
        }
    }

    /// The name TransformerLens uses.
    ///
    /// ```
    /// use hooklens::ActivationFn;
    /// for name in ["relu", "gelu", "gelu_new", "silu", "solu_ln"] {
    ///     assert_eq!(ActivationFn::from_name(name)?.name(), name);
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluNew => "gelu_new",
            Self::Silu => "silu",
            Self::Solu => "solu",
            Self::SoluLn => "solu_ln",
        }
    }
}

/// A mixture of experts.
///
/// ```
/// use hooklens::{Experts, TransformerConfig};
/// let experts = Experts { count: 8, per_token: 2, renormalize: true, clipped: None }; // Mixtral
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// let config = TransformerConfig { experts: Some(experts), gated_mlp: true, ..plain };
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts used for a token.
    pub per_token: usize,
    /// Whether the chosen experts' weights are made to sum to one.
    pub renormalize: bool,
    /// Bounds within which an expert's gate and input are kept, in place of the activation function.
    pub clipped: Option<ClippedGate>,
}

/// GPT-OSS's gate: `(1 + clip(in, -limit, limit)) g sigmoid(alpha g)` with `g = min(gate, limit)`.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{ClippedGate, Experts};
/// let clipped = Some(ClippedGate { alpha: 1.702, limit: 7.0 });
/// let experts = Some(Experts { count: 4, per_token: 2, renormalize: true, clipped }); // as GPT-OSS has them
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// assert_eq!(model.forward([1, 2, 3])?.dims(), [1, 3, 20]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClippedGate {
    /// Steepness of the sigmoid.
    pub alpha: f64,
    /// Largest value.
    pub limit: f64,
}

impl TransformerConfig {
    /// Upper bound on layers: nothing is allocated by a nonsensical number.
    pub(crate) const MOST_LAYERS: usize = 10_000;
    /// Upper bound on the experts of all layers together.
    const MOST_EXPERTS: usize = 100_000;

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
            d_mlp: d_model.saturating_mul(4),
            d_vocab,
            d_vocab_out: d_vocab,
            n_ctx,
            norm: NormKind::LayerNorm,
            eps: 1e-5,
            final_rms: false,
            post_embedding_norm: false,
            embed_scale: None,
            pre_norms: true,
            post_norms: false,
            qk_norm: false,
            qk_norm_whole: false,
            attn_sinks: false,
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

    /// The norm that attention and the MLP read through.
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
            (true, NormKind::LayerNorm) => NormKind::Rms,
            (true, NormKind::LayerNormPre) => NormKind::RmsPre,
            (_, norm) => norm,
        }
    }

    /// Checks that the sizes and choices fit each other.
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
            ("d_vocab_out", self.d_vocab_out),
            ("n_ctx", self.n_ctx),
            ("d_mlp", if self.attn_only { 1 } else { self.d_mlp }),
        ];
        let fails = |field, reason: String| Err(ConfigError::Contradiction { field, reason });
        if self.d_head == 0 && self.n_heads > 0 && !self.d_model.is_multiple_of(self.n_heads) {
            let reason = format!("{} heads can't share a d_model of {}", self.n_heads, self.d_model);
            return fails("n_heads", format!("{reason}; set d_head and attn_scale"));
        }
        // Far beyond any model, far below where products of two sizes overflow.
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
                format!("{} heads can't share {} key/value heads", self.n_heads, self.n_kv_heads),
            );
        }
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return fails("eps", format!("{} is not a small positive number", self.eps));
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
            return fails("windows", format!("a window of 0, as layer {layer} has it, sees nothing"));
        }
        if self.bidirectional && self.windows.iter().flatten().any(|window| matches!(window, Window::Chunked(_))) {
            return fails("windows", "chunks are defined for causal attention only".into());
        }
        if !self.layer_rotary.is_empty() && self.layer_rotary.len() != self.n_layers {
            return fails("layer_rotary", format!("{} entries for {} layers", self.layer_rotary.len(), self.n_layers));
        }
        if !self.layer_rotary.is_empty() && !matches!(self.positional, Positional::Rotary(_)) {
            return fails("layer_rotary", "only rotary positions differ from layer to layer".into());
        }
        if self.embed_scale.is_some_and(|scale| !scale.is_finite()) {
            return fails("embed_scale", format!("{:?} is not a number", self.embed_scale));
        }
        let shared = match &self.positional {
            Positional::Rotary(rotary) => Some(rotary),
            _ => None,
        };
        for rotary in shared.into_iter().chain(self.layer_rotary.iter().flatten()) {
            if rotary.dim == 0 || rotary.dim > self.d_head || !rotary.dim.is_multiple_of(2) {
                return fails(
                    "rotary.dim",
                    format!("{} is not a positive even number within d_head {}", rotary.dim, self.d_head),
                );
            }
            if !(rotary.base.is_finite() && rotary.base > 0.0) {
                return fails("rotary.base", format!("{} is not a positive number", rotary.base));
            }
            rotary.scaling.validate(rotary.dim)?;
        }
        if let Some(experts) = self.experts {
            let all = experts.count.saturating_mul(self.n_layers);
            if experts.per_token == 0 || experts.per_token > experts.count || all > Self::MOST_EXPERTS {
                return fails("experts", format!("{} of {} experts a token", experts.per_token, experts.count));
            }
            if self.attn_only || !self.gated_mlp {
                return fails("experts", "experts are gated MLPs".into());
            }
        }
        if self.activation == ActivationFn::SoluLn && (self.gated_mlp || self.experts.is_some()) {
            return fails("activation", "solu_ln is defined for a plain MLP only".into());
        }
        Ok(())
    }
}

impl RopeScaling {
    fn validate(&self, dim: usize) -> Result<(), ConfigError> {
        let fails =
            |reason: &str| Err(ConfigError::Contradiction { field: "rope_scaling", reason: reason.to_string() });
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match *self {
            RopeScaling::Linear { factor } if !positive(factor) => fails("factor must be positive"),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                if !positive(factor)
                    || !positive(low_freq_factor)
                    || !high_freq_factor.is_finite()
                    || original_context == 0
                {
                    fails("factors and the original context must be positive")
                } else if high_freq_factor <= low_freq_factor {
                    fails("high_freq_factor must be over low_freq_factor")
                } else {
                    Ok(())
                }
            }
            RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_context, .. }
                if !(positive(factor) && positive(attention_factor) && positive(beta_fast) && positive(beta_slow))
                    || original_context == 0 =>
            {
                fails("factors, betas and the original context must be positive")
            }
            RopeScaling::Long { ref short_factor, ref long_factor, attention_factor, original_context } => {
                let pairs = dim / 2;
                if short_factor.len() != pairs || long_factor.len() != pairs {
                    return fails(&format!(
                        "{} short and {} long factors for {pairs} rotated pairs",
                        short_factor.len(),
                        long_factor.len()
                    ));
                }
                if !short_factor.iter().chain(long_factor).all(|factor| positive(*factor))
                    || !positive(attention_factor)
                    || original_context == 0
                {
                    return fails("factors and the original context must be positive");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
