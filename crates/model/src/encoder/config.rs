//! Configuration of an encoder.

use serde::{Deserialize, Serialize};

use crate::config::{ActivationFn, Layers, NormKind, Positional, Rotary, TransformerConfig, Window};
use crate::error::ConfigError;

/// Configuration of an encoder: bidirectional attention, with norms after each residual addition (post-norm), as in
/// BERT, or before attention and the MLP (pre-norm).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderConfig {
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of attention heads.
    pub n_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Number of MLP neurons.
    pub d_mlp: usize,
    /// Vocabulary size.
    pub d_vocab: usize,
    /// Maximum sequence length.
    pub n_ctx: usize,
    /// Kind of norm used throughout the model.
    pub norm: NormKind,
    /// Epsilon added to the variance or mean square in a norm.
    pub eps: f64,
    /// Activation function of the MLP.
    pub activation: ActivationFn,
    /// Activation function of the masked-token head.
    pub head_activation: ActivationFn,
    /// Number of token types, which distinguish the first and second text of a pair; 0 if the model has none.
    pub token_types: usize,
    /// Width of the token, position and type embeddings, if a linear map projects them to the residual stream (ALBERT,
    /// ELECTRA).
    pub d_embed: Option<usize>,
    /// Whether the sum of the embeddings is normalized.
    pub embed_norm: bool,
    /// Id of the mask token, if the model was trained with token dropout (ESM): the mask token's embedding is zeroed,
    /// and the embeddings of the other tokens are rescaled.
    pub token_dropout: Option<u32>,
    /// Index of each layer's weights; empty if each layer has its own (ALBERT shares one block).
    pub shared_blocks: Vec<usize>,
    /// Whether norms precede attention and the MLP, with a final norm (pre-norm: ESM), instead of following each
    /// residual addition (post-norm: BERT).
    pub pre_norms: bool,
    /// Whether the first layer's attention has a norm like the other layers' (false in ModernBERT).
    pub first_norm: bool,
    /// Position embedding.
    pub positional: Positional,
    /// Rotary embedding of each layer; empty if all layers use the model's rotary embedding.
    pub layer_rotary: Vec<Option<Rotary>>,
    /// Attention window of each layer, `None` for no limit; empty if no layer has a window.
    pub windows: Vec<Option<Window>>,
    /// Learned relative positions in the attention scores, if any. Rotary embeddings are separate.
    pub relative: Option<RelativePositions>,
    /// Whether the MLP multiplies the activation by a second projection.
    pub gated_mlp: bool,
    /// Divisor of the attention scores, usually the square root of `d_head`.
    pub attn_scale: f64,
}

/// How attention scores depend on relative positions through learned weights.
///
/// ```
/// use hooklens_model::encoder::RelativePositions;
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
    /// Adds a bias per head and distance bucket (MPNet, T5).
    Buckets {
        /// Number of buckets, for both directions together.
        count: usize,
        /// Positions at this distance or farther share one bucket.
        max_distance: usize,
        /// Whether each layer has its own biases (UMT5) rather than all layers sharing them.
        each_layer: bool,
    },
    /// Disentangled attention: queries attend to keys of relative positions, and keys to queries of relative positions
    /// (DeBERTa 2 and 3).
    Disentangled {
        /// Half the number of relative position embeddings.
        span: usize,
        /// Positions at this distance or farther share one embedding, if far distances are grouped logarithmically.
        max_distance: Option<usize>,
        /// Whether queries attend to positions.
        content_to_position: bool,
        /// Whether keys attend to positions.
        position_to_content: bool,
        /// Whether positions use the same query and key projections as tokens.
        shared: bool,
        /// Whether the position embeddings are normalized.
        norm: bool,
    },
}

impl RelativePositions {
    /// Number of rows in the relative position table.
    pub fn count(&self) -> usize {
        match *self {
            RelativePositions::Buckets { count, .. } => count,
            RelativePositions::Disentangled { span, .. } => span.saturating_mul(2),
        }
    }

    /// Shape of the table that all layers share, and whether the table is normalized; `None` if each layer has its own.
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
            RelativePositions::Buckets { count, max_distance, .. } if max_distance <= count / 4 => fails(
                "relative.max_distance",
                format!("it must be greater than {}, the number of distances with their own buckets", count / 4),
            ),
            RelativePositions::Disentangled { span, max_distance: Some(far), .. } if far <= span / 2 + 1 => fails(
                "relative.max_distance",
                format!("{far} must be at least 2 more than {}, the largest distance with its own embedding", span / 2),
            ),
            RelativePositions::Disentangled { content_to_position: false, position_to_content: false, .. } => {
                fails("relative", "neither content-to-position nor position-to-content attention is enabled".into())
            }
            _ => Ok(()),
        }
    }
}

impl EncoderConfig {
    /// Creates a BERT-like configuration: norms after each addition, learned positions, two token types, and an MLP
    /// four times as wide as the residual stream.
    ///
    /// ```
    /// use hooklens_model::encoder::EncoderConfig;
    /// let config = EncoderConfig::new(2, 64, 4, 100, 32); // layers, width, heads, vocabulary, positions
    /// assert_eq!((config.d_head, config.d_mlp, config.token_types), (16, 256, 2));
    /// ```
    pub fn new(n_layers: usize, d_model: usize, n_heads: usize, d_vocab: usize, n_ctx: usize) -> Self {
        let stack = TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, n_ctx);
        Self {
            n_layers,
            d_model,
            n_heads,
            d_head: stack.d_head(),
            d_mlp: stack.d_mlp(),
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

    /// Index of the weights used by layer `layer`.
    pub(crate) fn block(&self, layer: usize) -> usize {
        self.shared_blocks.get(layer).copied().unwrap_or(layer)
    }

    /// Number of distinct blocks of weights.
    pub fn n_blocks(&self) -> usize {
        self.shared_blocks.iter().max().map_or(self.n_layers, |last| last + 1)
    }

    /// Width of the token, position and type embeddings, and of the masked-token head.
    pub fn embed_width(&self) -> usize {
        self.d_embed.unwrap_or(self.d_model)
    }

    /// Kind of the norm before or after layer `layer`'s attention.
    pub fn attn_norm(&self, layer: usize) -> NormKind {
        if layer == 0 && self.pre_norms && !self.first_norm { NormKind::None } else { self.norm }
    }

    /// The part of the configuration that attention and MLP use.
    ///
    /// # Errors
    /// [`ConfigError`] if a nonempty list does not have one entry per layer.
    pub fn stack(&self) -> Result<TransformerConfig, ConfigError> {
        TransformerConfig::new(self.n_layers, self.d_model, self.n_heads, self.d_vocab, self.n_ctx)
            .with_d_head(self.d_head)
            .with_d_mlp(self.d_mlp)
            .with_gated_mlp(self.gated_mlp)
            .with_positional(match &self.positional {
                rotary @ Positional::Rotary(_) => rotary.clone(),
                _ => Positional::None,
            })
            .with_attn_scale(self.attn_scale)
            .with_norm(self.norm)
            .with_eps(self.eps)
            .with_activation(self.activation)
            .with_bidirectional(true)
            .with_default_prepend_bos(false)
            .with_layer_rotary(self.layer_rotary.clone())?
            .with_windows(self.windows.clone())
    }

    /// Checks that the sizes are consistent.
    ///
    /// ```
    /// use hooklens_model::encoder::EncoderConfig;
    /// let config = EncoderConfig { n_heads: 0, ..EncoderConfig::new(2, 64, 4, 100, 32) };
    /// assert!(config.validate().unwrap_err().to_string().contains("n_heads"));
    /// ```
    ///
    /// # Errors
    /// A [`ConfigError`] that names the invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stack()?.validate()?;
        let fails = |field, reason: String| Err(ConfigError::Contradiction { field, reason });
        if !matches!(self.positional, Positional::Learned | Positional::Rotary(_) | Positional::None) {
            return fails("positional", "an encoder's positions must be learned, rotary or none".into());
        }
        if !matches!(self.norm, NormKind::LayerNorm | NormKind::Rms) {
            return fails("norm", "an encoder's norms must be layer norms or RMS norms, with weights".into());
        }
        if let Some(given) = self.d_embed.filter(|width| *width == 0 || *width > 1 << 28) {
            return Err(ConfigError::BadSize { field: "d_embed", given });
        }
        if !self.shared_blocks.is_empty() && self.shared_blocks.len() != self.n_layers {
            let reason = format!("it has {} entries for a model of {} layers", self.shared_blocks.len(), self.n_layers);
            return fails("shared_blocks", reason);
        }
        if self.n_blocks() > self.n_layers {
            return fails("shared_blocks", format!("{} blocks, but only {} layers", self.n_blocks(), self.n_layers));
        }
        self.relative.map_or(Ok(()), |relative| relative.validate())
    }
}
