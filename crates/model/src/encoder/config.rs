//! The configuration of an encoder.

use serde::{Deserialize, Serialize};

use crate::config::{ActivationFn, NormKind, Positional, Rotary, TransformerConfig, Window};
use crate::error::ConfigError;

/// The shape and the choices of an encoder: attention in both directions, and, as BERT has it, a norm of the stream after
/// each addition, or norms before attention and the MLP.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let config = model.config();
/// assert_eq!(config.n_heads * config.d_head, config.d_model);
/// assert_eq!(config.token_types, 2); // first and second text
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderConfig {
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Neurons of the MLP.
    pub d_mlp: usize,
    /// Tokens of the vocabulary.
    pub d_vocab: usize,
    /// Longest sequence.
    pub n_ctx: usize,
    /// Kind of every norm.
    pub norm: NormKind,
    /// Added to the variance or the mean square inside a norm.
    pub eps: f64,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// The masked-token head's.
    pub head_activation: ActivationFn,
    /// Kinds of token, such as a pair's first and second text; 0 if the model makes no difference.
    pub token_types: usize,
    /// Width of the vectors of tokens, positions and types, where a linear map makes the stream of them (ALBERT, ELECTRA).
    pub d_embed: Option<usize>,
    /// Whether those vectors' sum is normalized.
    pub embed_norm: bool,
    /// The mask token, where its vector is zero and the others are scaled up for it as in training (ESM).
    pub token_dropout: Option<u32>,
    /// For each layer which of the blocks of weights it has; empty where each has its own (ALBERT has one for all).
    pub shared_blocks: Vec<usize>,
    /// Whether attention and the MLP read the stream through a norm, and the last stream is normalized (ESM), rather than
    /// the stream normalized after each addition (BERT).
    pub pre_norms: bool,
    /// Whether the first layer's attention has a norm, too, where the others' have (ModernBERT: no).
    pub first_norm: bool,
    /// Position embedding.
    pub positional: Positional,
    /// For each layer of a rotary model its own rotation; empty when all layers rotate alike.
    pub layer_rotary: Vec<Option<Rotary>>,
    /// For each layer how far a query sees; `None` for all the way. Empty when no layer has a window.
    pub windows: Vec<Option<Window>>,
    /// What scores know of relative positions, besides rotations.
    pub relative: Option<RelativePositions>,
    /// Whether the MLP multiplies the activation by a second projection.
    pub gated_mlp: bool,
    /// Attention scores are divided by this; usually the root of `d_head`.
    pub attn_scale: f64,
}

/// How scores of attention come to know of relative positions by learned weights.
///
/// ```
/// use hooklens::encoder::RelativePositions;
/// let deberta = RelativePositions::Disentangled {
///     span: 256,
///     max_distance: Some(512),
///     content_to_position: true,
///     position_to_content: true,
///     shared: true,
///     norm: true,
/// };
/// assert_eq!(deberta.count(), 512);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RelativePositions {
    /// A number for each head and bucket of distances is added (MPNet, T5).
    Buckets {
        /// How many there are, for both directions.
        count: usize,
        /// Distance from which on all share a bucket.
        max_distance: usize,
        /// Whether each layer has its own numbers (UMT5), or all the same.
        each_layer: bool,
    },
    /// Queries meet keys made of vectors of relative positions, and keys queries (DeBERTa 2 and 3).
    Disentangled {
        /// Half of the vectors there are.
        span: usize,
        /// Distance from which on all share a vector, where far ones share by their logarithm.
        max_distance: Option<usize>,
        /// Whether queries meet positions.
        content_to_position: bool,
        /// Whether keys do.
        position_to_content: bool,
        /// Whether positions' keys and queries are made by the weights of tokens' keys and queries.
        shared: bool,
        /// Whether the vectors are normalized.
        norm: bool,
    },
}

impl RelativePositions {
    /// Rows of the table.
    pub fn count(&self) -> usize {
        match *self {
            RelativePositions::Buckets { count, .. } => count,
            RelativePositions::Disentangled { span, .. } => span.saturating_mul(2),
        }
    }

    /// Shape of the table that all layers share, and whether it is normalized; nothing if each layer has its own.
    pub fn shared_table(&self, config: &EncoderConfig) -> Option<([usize; 2], bool)> {
        match *self {
            RelativePositions::Buckets { each_layer: true, .. } => None,
            RelativePositions::Buckets { count, .. } => Some(([count, config.n_heads], false)),
            RelativePositions::Disentangled { norm, .. } => Some(([self.count(), config.d_model], norm)),
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let fails = |field, reason: String| Err(ConfigError::Contradiction { field, reason });
        let (field, given, least) = match *self {
            RelativePositions::Buckets { count, .. } => ("relative.count", count, 4),
            RelativePositions::Disentangled { span, max_distance, .. } => {
                ("relative.span", span, if max_distance.is_some() { 4 } else { 1 })
            }
        };
        if given < least || given > 1 << 20 {
            return Err(ConfigError::BadSize { field, given });
        }
        match *self {
            RelativePositions::Buckets { count, max_distance, .. } if max_distance <= count / 4 => {
                fails("relative.max_distance", format!("{} exact buckets reach as far", count / 4))
            }
            RelativePositions::Disentangled { span, max_distance: Some(far), .. } if far <= span / 2 + 1 => {
                fails("relative.max_distance", format!("{} exact distances reach as far as {far}", span / 2))
            }
            RelativePositions::Disentangled { content_to_position: false, position_to_content: false, .. } => {
                fails("relative", "neither queries nor keys meet positions".into())
            }
            _ => Ok(()),
        }
    }
}

impl EncoderConfig {
    /// An encoder such as BERT: norms after each addition, learned positions, two types of token, an MLP four times as wide.
    ///
    /// ```
    /// use hooklens::encoder::EncoderConfig;
    /// let config = EncoderConfig::new(2, 64, 4, 100, 32); // layers, width, heads, vocabulary, positions
    /// assert_eq!((config.d_head, config.d_mlp, config.token_types), (16, 256, 2));
    /// ```
    pub fn new(n_layers: usize, d_model: usize, n_heads: usize, d_vocab: usize, n_ctx: usize) -> Self {
        let stack = TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, n_ctx);
        Self {
            n_layers,
            d_model,
            n_heads,
            d_head: stack.d_head,
            d_mlp: stack.d_mlp,
            d_vocab,
            n_ctx,
            norm: NormKind::LayerNorm,
            eps: 1e-12,
            activation: ActivationFn::Gelu,
            head_activation: ActivationFn::Gelu,
            token_types: 2,
            d_embed: None,
            embed_norm: true,
            token_dropout: None,
            shared_blocks: Vec::new(),
            pre_norms: false,
            first_norm: true,
            positional: Positional::Learned,
            layer_rotary: Vec::new(),
            windows: Vec::new(),
            relative: None,
            gated_mlp: false,
            attn_scale: stack.attn_scale,
        }
    }

    /// Which block of weights layer `layer` has.
    pub(crate) fn block(&self, layer: usize) -> usize {
        self.shared_blocks.get(layer).copied().unwrap_or(layer)
    }

    /// Blocks of weights there are.
    pub fn n_blocks(&self) -> usize {
        self.shared_blocks.iter().max().map_or(self.n_layers, |last| last + 1)
    }

    /// Width of the vectors of tokens, positions and types, and of the masked-token head.
    pub fn embed_width(&self) -> usize {
        self.d_embed.unwrap_or(self.d_model)
    }

    /// The norm before layer `layer`'s attention, or after it.
    pub fn attn_norm(&self, layer: usize) -> NormKind {
        if layer == 0 && self.pre_norms && !self.first_norm { NormKind::None } else { self.norm }
    }

    /// The part of it that attention and MLP read.
    pub fn stack(&self) -> TransformerConfig {
        TransformerConfig {
            d_head: self.d_head,
            attn_scale: self.attn_scale,
            d_mlp: self.d_mlp,
            norm: self.norm,
            eps: self.eps,
            activation: self.activation,
            gated_mlp: self.gated_mlp,
            // Vectors of positions are the embedding's.
            positional: match &self.positional {
                rotary @ Positional::Rotary(_) => rotary.clone(),
                _ => Positional::None,
            },
            layer_rotary: self.layer_rotary.clone(),
            windows: self.windows.clone(),
            bidirectional: true,
            default_prepend_bos: false,
            ..TransformerConfig::new(self.n_layers, self.d_model, self.n_heads, self.d_vocab, self.n_ctx)
        }
    }

    /// Checks that the sizes fit each other.
    ///
    /// ```
    /// # use hooklens::encoder::{EncoderConfig, HookedEncoder};
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let config = EncoderConfig { n_heads: 0, ..model.config().clone() };
    /// assert!(config.validate().unwrap_err().to_string().contains("n_heads"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] naming the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stack().validate()?;
        let fails = |field, reason: String| Err(ConfigError::Contradiction { field, reason });
        if !matches!(self.positional, Positional::Learned | Positional::Rotary(_) | Positional::None) {
            return fails("positional", "an encoder's positions are learned, rotary or none".into());
        }
        if !matches!(self.norm, NormKind::LayerNorm | NormKind::Rms) {
            return fails("norm", "an encoder's norms are layer norms or RMS norms, with weights".into());
        }
        if let Some(given) = self.d_embed.filter(|width| *width == 0 || *width > 1 << 28) {
            return Err(ConfigError::BadSize { field: "d_embed", given });
        }
        if !self.shared_blocks.is_empty() && self.shared_blocks.len() != self.n_layers {
            let reason = format!("{} entries for {} layers", self.shared_blocks.len(), self.n_layers);
            return fails("shared_blocks", reason);
        }
        if self.n_blocks() > self.n_layers {
            return fails("shared_blocks", format!("{} blocks for {} layers", self.n_blocks(), self.n_layers));
        }
        self.relative.map_or(Ok(()), |relative| relative.validate())
    }
}
