//! The configuration of an encoder-decoder.

use serde::{Deserialize, Serialize};

use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig};
use crate::error::ConfigError;

/// The shape and the choices of a model of T5's kind: RMS norms before attention and MLP, no biases, no scale
/// on scores, a learned bias a head and bucket of distances.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let config = model.config();
/// assert_eq!(config.decoder_start_token, 0);
/// assert!(config.output_scale.is_some() && !config.gated_mlp); // T5 1.0
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderDecoderConfig {
    /// Blocks of the encoder.
    pub n_encoder_layers: usize,
    /// Blocks of the decoder.
    pub n_decoder_layers: usize,
    /// Width of the residual streams.
    pub d_model: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Neurons of the MLP.
    pub d_mlp: usize,
    /// Tokens of the vocabulary.
    pub d_vocab: usize,
    /// Added to the mean square inside a norm.
    pub eps: f64,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// Whether the MLP multiplies the activation by a second projection (T5 1.1).
    pub gated_mlp: bool,
    /// Buckets of distances.
    pub relative_buckets: usize,
    /// Distance from which on all share the last bucket.
    pub relative_max_distance: usize,
    /// The last stream is multiplied by this before the unembedding (T5 1.0, whose unembedding is tied).
    pub output_scale: Option<f64>,
    /// The token that every decoded text begins with.
    pub decoder_start_token: u32,
}

impl EncoderDecoderConfig {
    /// The part of it that the blocks of one stack read.
    pub(crate) fn stack(&self, decodes: bool) -> TransformerConfig {
        let n_layers = if decodes { self.n_decoder_layers } else { self.n_encoder_layers };
        // Positions are distances: no length is too long.
        let n_ctx = 1 << 28;
        TransformerConfig {
            d_head: self.d_head,
            attn_scale: 1.0,
            d_mlp: self.d_mlp,
            norm: NormKind::Rms,
            eps: self.eps,
            activation: self.activation,
            gated_mlp: self.gated_mlp,
            positional: Positional::None,
            bidirectional: !decodes,
            default_prepend_bos: false,
            ..TransformerConfig::new(n_layers, self.d_model, self.n_heads, self.d_vocab, n_ctx)
        }
    }

    /// Checks that the sizes fit each other.
    ///
    /// ```
    /// # use hooklens::encoder_decoder::{EncoderDecoderConfig, HookedEncoderDecoder};
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let config = EncoderDecoderConfig { d_vocab: 0, ..model.config().clone() };
    /// assert!(config.validate().unwrap_err().to_string().contains("d_vocab"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] naming the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stack(false).validate()?;
        self.stack(true).validate()?;
        // Half of them for later keys, half of those for exact distances.
        if self.relative_buckets < 4 || self.relative_buckets > 1 << 16 {
            return Err(ConfigError::BadSize { field: "relative_buckets", given: self.relative_buckets });
        }
        if self.relative_max_distance <= self.relative_buckets / 2 {
            return Err(ConfigError::Contradiction {
                field: "relative_max_distance",
                reason: format!("{} exact buckets reach as far", self.relative_buckets / 2),
            });
        }
        if self.decoder_start_token as usize >= self.d_vocab {
            let reason = format!("token {} is outside the vocabulary", self.decoder_start_token);
            return Err(ConfigError::Contradiction { field: "decoder_start_token", reason });
        }
        Ok(())
    }
}
