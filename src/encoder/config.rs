//! The configuration of an encoder.

use serde::{Deserialize, Serialize};

use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig};
use crate::error::ConfigError;

/// The shape and the choices of an encoder of BERT's kind: attention in both directions, a norm of the
/// stream after each addition.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
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
    /// Added to the variance inside a norm.
    pub eps: f64,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// The masked-token head's.
    pub head_activation: ActivationFn,
    /// Kinds of token, such as a pair's first and second text; 0 if the model makes no difference.
    pub token_types: usize,
}

impl EncoderConfig {
    /// The part of it that attention and MLP read.
    pub(crate) fn stack(&self) -> TransformerConfig {
        TransformerConfig {
            d_head: self.d_head,
            attn_scale: (self.d_head as f64).sqrt(),
            d_mlp: self.d_mlp,
            norm: NormKind::LayerNorm,
            eps: self.eps,
            activation: self.activation,
            positional: Positional::None,
            bidirectional: true,
            default_prepend_bos: false,
            ..TransformerConfig::new(self.n_layers, self.d_model, self.n_heads, self.d_vocab, self.n_ctx)
        }
    }

    /// Checks that the sizes fit each other.
    ///
    /// ```
    /// # use hooklens::encoder::{EncoderConfig, HookedEncoder};
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let config = EncoderConfig { n_heads: 0, ..model.config().clone() };
    /// assert!(config.validate().unwrap_err().to_string().contains("n_heads"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] naming the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stack().validate()
    }
}
