//! The configuration of an encoder-decoder.

use serde::{Deserialize, Serialize};

use super::positions::StackPositions;
use super::rules::TokenRules;
use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig, Window};
use crate::error::ConfigError;

/// The shape and the choices of an encoder with a decoder that attends to it.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
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
    /// Width of the encoder's residual stream.
    pub d_model: usize,
    /// Width of the decoder's.
    pub d_decoder_model: usize,
    /// Attention heads of the encoder's blocks.
    pub n_heads: usize,
    /// Width of one of them.
    pub d_head: usize,
    /// Neurons of the encoder's MLPs.
    pub d_mlp: usize,
    /// Attention heads of the decoder's blocks, of either attention.
    pub n_decoder_heads: usize,
    /// Width of one of them.
    pub d_decoder_head: usize,
    /// Neurons of the decoder's MLPs.
    pub d_decoder_mlp: usize,
    /// Tokens that the encoder reads.
    pub d_vocab: usize,
    /// Tokens that the decoder reads and writes.
    pub d_decoder_vocab: usize,
    /// Whether both stacks read one table of token vectors.
    pub shared_embed: bool,
    /// What token vectors that the encoder reads are multiplied by.
    pub embed_scale: Option<f64>,
    /// What those that the decoder reads are.
    pub decoder_embed_scale: Option<f64>,
    /// Positions of both stacks.
    pub positions: StackPositions,
    /// Whether the first stream of each stack is normalized.
    pub embed_norm: bool,
    /// Whether of the decoder the token vectors alone are, unscaled, before positions are added (Blenderbot Small).
    pub decoder_tokens_normed: bool,
    /// Kind of every norm.
    pub norm: NormKind,
    /// Whether norms are of the stream after each addition (Marian, BART). Else they are of what attention and MLP read,
    /// and one more is behind the last block.
    pub norm_after: bool,
    /// Whether what attention and MLP add to the stream is normalized too (T5Gemma).
    pub post_norms: bool,
    /// Added to the mean square or the variance inside a norm.
    pub eps: f64,
    /// Scores of the encoder's attention.
    pub attention: StackAttention,
    /// Scores of the decoder's, to its own positions and to the encoder's.
    pub decoder_attention: StackAttention,
    /// The MLP's activation function.
    pub activation: ActivationFn,
    /// Whether the MLP multiplies the activation by a second projection (T5 1.1).
    pub gated_mlp: bool,
    /// The last stream is multiplied by this before the unembedding (T5 1.0, whose unembedding is tied).
    pub output_scale: Option<f64>,
    /// `cap * tanh(logit / cap)` on logits (T5Gemma).
    pub output_logits_soft_cap: Option<f64>,
    /// The token that every decoded text begins with.
    pub decoder_start_token: u32,
    /// Tokens that generation must or must not write.
    pub token_rules: TokenRules,
}

/// How heads of one stack's blocks share keys, and what is done to scores.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/bart")?;
/// let config = model.config();
/// assert_eq!(config.attention.n_kv_heads, config.n_heads); // each has its own
/// assert_eq!(config.attention.scale, (config.d_head as f64).sqrt());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StackAttention {
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Scores are divided by this.
    pub scale: f64,
    /// `cap * tanh(score / cap)` on scores.
    pub soft_cap: Option<f64>,
    /// For each layer how far a query sees of its own stack; `None` for all the way. Empty when no layer has a window.
    pub windows: Vec<Option<Window>>,
}

impl StackAttention {
    /// As many key heads as there are, no cap, no windows; scores divided by this.
    pub fn plain(n_heads: usize, scale: f64) -> Self {
        Self { n_kv_heads: n_heads, scale, soft_cap: None, windows: Vec::new() }
    }
}

impl EncoderDecoderConfig {
    /// The part of it that the blocks of one stack read.
    pub fn stack(&self, decodes: bool) -> TransformerConfig {
        let (n_layers, d_model, n_heads, d_head, d_mlp, d_vocab) = match decodes {
            true => (
                self.n_decoder_layers,
                self.d_decoder_model,
                self.n_decoder_heads,
                self.d_decoder_head,
                self.d_decoder_mlp,
                self.d_decoder_vocab,
            ),
            false => (self.n_encoder_layers, self.d_model, self.n_heads, self.d_head, self.d_mlp, self.d_vocab),
        };
        let own = if decodes { &self.decoder_attention } else { &self.attention };
        TransformerConfig {
            d_head,
            n_kv_heads: own.n_kv_heads,
            attn_scale: own.scale,
            attn_scores_soft_cap: own.soft_cap,
            windows: own.windows.clone(),
            post_norms: self.post_norms,
            d_mlp,
            norm: self.norm,
            eps: self.eps,
            activation: self.activation,
            gated_mlp: self.gated_mlp,
            positional: match &self.positions {
                StackPositions::Rotary { encoder, decoder } => {
                    Positional::Rotary(if decodes { decoder } else { encoder }.clone())
                }
                _ => Positional::None,
            },
            bidirectional: !decodes,
            default_prepend_bos: false,
            ..TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, self.positions.n_ctx())
        }
    }

    /// Kind of the norm behind the last block of each stack.
    pub fn final_norm(&self) -> NormKind {
        if self.norm_after { NormKind::None } else { self.norm }
    }

    /// Checks that the sizes fit each other.
    ///
    /// ```
    /// # use hooklens::encoder_decoder::{EncoderDecoderConfig, HookedEncoderDecoder};
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
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
        self.positions.validate(self.d_model)?;
        if self.shared_embed && self.d_decoder_model != self.d_model {
            let reason = format!("the one table's vectors are of width {}, not {}", self.d_model, self.d_decoder_model);
            return Err(ConfigError::Contradiction { field: "d_decoder_model", reason });
        }
        if self.norm_after && self.post_norms {
            let reason = "norms are of sums, or of what is read and added".to_string();
            return Err(ConfigError::Contradiction { field: "post_norms", reason });
        }
        if let Some(cap) = self.output_logits_soft_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            let reason = format!("{cap} is not a positive number");
            return Err(ConfigError::Contradiction { field: "output_logits_soft_cap", reason });
        }
        if self.shared_embed && self.d_decoder_vocab != self.d_vocab {
            let reason = format!("the one table has {} rows, not {}", self.d_vocab, self.d_decoder_vocab);
            return Err(ConfigError::Contradiction { field: "d_decoder_vocab", reason });
        }
        if self.decoder_start_token as usize >= self.d_decoder_vocab {
            let reason = format!("token {} is outside the vocabulary", self.decoder_start_token);
            return Err(ConfigError::Contradiction { field: "decoder_start_token", reason });
        }
        self.token_rules.validate(self.d_decoder_vocab)
    }
}
