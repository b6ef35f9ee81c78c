//! Configuration of an encoder-decoder.

use serde::{Deserialize, Serialize};

use super::positions::StackPositions;
use super::rules::TokenRules;
use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig, Window};
use crate::error::ConfigError;

/// Configuration of an encoder and a decoder that attends to its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderDecoderConfig {
    /// Number of encoder blocks.
    pub n_encoder_layers: usize,
    /// Number of decoder blocks.
    pub n_decoder_layers: usize,
    /// Width of the encoder's residual stream.
    pub d_model: usize,
    /// Width of the decoder's residual stream.
    pub d_decoder_model: usize,
    /// Number of attention heads in the encoder.
    pub n_heads: usize,
    /// Width of an encoder head.
    pub d_head: usize,
    /// Number of MLP neurons in the encoder.
    pub d_mlp: usize,
    /// Number of attention heads in the decoder, for both self-attention and cross-attention.
    pub n_decoder_heads: usize,
    /// Width of a decoder head.
    pub d_decoder_head: usize,
    /// Number of MLP neurons in the decoder.
    pub d_decoder_mlp: usize,
    /// Vocabulary size of the encoder.
    pub d_vocab: usize,
    /// Vocabulary size of the decoder.
    pub d_decoder_vocab: usize,
    /// Whether both stacks share a token embedding.
    pub shared_embed: bool,
    /// Factor applied to the encoder's token embeddings.
    pub embed_scale: Option<f64>,
    /// Factor applied to the decoder's token embeddings.
    pub decoder_embed_scale: Option<f64>,
    /// Positional embeddings of both stacks.
    pub positions: StackPositions,
    /// Whether the embeddings of each stack are normalized.
    pub embed_norm: bool,
    /// Whether the decoder's embedding norm applies only to the unscaled token embeddings, before positions are added
    /// (Blenderbot Small).
    pub decoder_tokens_normed: bool,
    /// Kind of norm used throughout the model.
    pub norm: NormKind,
    /// Whether a norm follows each residual addition (post-norm: Marian, BART). Otherwise, norms precede attention and
    /// the MLP, and each stack has a final norm.
    pub norm_after: bool,
    /// Whether the outputs of attention and the MLP are also normalized (T5Gemma).
    pub post_norms: bool,
    /// Epsilon added to the mean square or variance in a norm.
    pub eps: f64,
    /// Attention settings of the encoder.
    pub attention: StackAttention,
    /// Attention settings of the decoder, for both self-attention and cross-attention.
    pub decoder_attention: StackAttention,
    /// Activation function of the MLP.
    pub activation: ActivationFn,
    /// Whether the MLP multiplies the activation by a second projection (T5 1.1).
    pub gated_mlp: bool,
    /// Factor applied to the decoder's last hidden state before the unembedding (T5 1.0, whose unembedding is tied).
    pub output_scale: Option<f64>,
    /// Soft cap of the logits: `cap * tanh(logit / cap)` (T5Gemma).
    pub output_logits_soft_cap: Option<f64>,
    /// Token that every decoded text starts with.
    pub decoder_start_token: u32,
    /// Tokens that generation is forced or forbidden to produce.
    pub token_rules: TokenRules,
}

/// Attention settings of one stack: key/value heads, scaling and windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StackAttention {
    /// Number of key/value heads.
    pub n_kv_heads: usize,
    /// Divisor of the attention scores.
    pub scale: f64,
    /// Soft cap of the attention scores: `cap * tanh(score / cap)`.
    pub soft_cap: Option<f64>,
    /// Self-attention window of each layer, `None` for no limit; empty if no layer has a window.
    pub windows: Vec<Option<Window>>,
}

impl StackAttention {
    /// Creates settings with one key/value head per attention head, the score divisor `scale`, no soft cap and no
    /// windows.
    pub fn plain(n_heads: usize, scale: f64) -> Self {
        Self { n_kv_heads: n_heads, scale, soft_cap: None, windows: Vec::new() }
    }
}

impl EncoderDecoderConfig {
    /// Configuration of the decoder's blocks if `decodes` is true, or else of the encoder's blocks.
    ///
    /// # Errors
    /// [`ConfigError`] if a nonempty list does not have one entry per layer.
    pub fn stack(&self, decodes: bool) -> Result<TransformerConfig, ConfigError> {
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
        TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, self.positions.n_ctx())
            .with_kv_heads(own.n_kv_heads)
            .with_d_head(d_head)
            .with_d_mlp(d_mlp)
            .with_gated_mlp(self.gated_mlp)
            .with_positional(match &self.positions {
                StackPositions::Rotary { encoder, decoder } => {
                    Positional::Rotary(if decodes { decoder } else { encoder }.clone())
                }
                _ => Positional::None,
            })
            .with_attn_scale(own.scale)
            .with_attn_scores_soft_cap(own.soft_cap)
            .with_post_norms(self.post_norms)
            .with_norm(self.norm)
            .with_eps(self.eps)
            .with_activation(self.activation)
            .with_bidirectional(!decodes)
            .with_default_prepend_bos(false)
            .with_windows(own.windows.clone())
    }

    /// Kind of the final norm of each stack.
    pub fn final_norm(&self) -> NormKind {
        if self.norm_after { NormKind::None } else { self.norm }
    }

    /// Checks that the sizes are consistent.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.stack(false)?.validate()?;
        self.stack(true)?.validate()?;
        self.positions.validate(self.d_model)?;
        if self.shared_embed && self.d_decoder_model != self.d_model {
            let reason = format!("the shared embedding has a width of {}, not {}", self.d_model, self.d_decoder_model);
            return Err(ConfigError::Contradiction { field: "d_decoder_model", reason });
        }
        if self.norm_after && self.post_norms {
            let reason = "it can't be combined with `norm_after`".to_string();
            return Err(ConfigError::Contradiction { field: "post_norms", reason });
        }
        if let Some(cap) = self.output_logits_soft_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            let reason = format!("{cap} is not a positive number");
            return Err(ConfigError::Contradiction { field: "output_logits_soft_cap", reason });
        }
        if self.shared_embed && self.d_decoder_vocab != self.d_vocab {
            let reason = format!("the shared embedding has {} rows, not {}", self.d_vocab, self.d_decoder_vocab);
            return Err(ConfigError::Contradiction { field: "d_decoder_vocab", reason });
        }
        if self.decoder_start_token as usize >= self.d_decoder_vocab {
            let reason = format!("token {} is outside the vocabulary", self.decoder_start_token);
            return Err(ConfigError::Contradiction { field: "decoder_start_token", reason });
        }
        self.token_rules.validate(self.d_decoder_vocab)
    }
}
