//! Kinds of position information.

use serde::{Deserialize, Serialize};

use super::Rotary;

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
    /// A learned vector for each position, added to the token's vector before the norm of the embedding
    /// ([`post_embedding_norm`](super::TransformerConfig::post_embedding_norm)), so that `hook_embed` has it too (BART).
    LearnedNormalized,
    /// Queries and keys are rotated by their position.
    Rotary(Rotary),
    /// ALiBi (Press et al. 2021): scores fall off linearly with distance, with a slope for each head.
    Alibi,
    /// ALiBi as Falcon has it: the slope times the key's position, rounded to bf16, is added to scores before these
    /// are divided by `attn_scale`.
    ScaledAlibi,
    /// A learned vector for each position, added to what queries and keys read, never to the stream
    /// (Press et al. 2020).
    Shortformer,
    /// No position information.
    None,
}

impl Positional {
    /// Whether there is a table of position vectors.
    pub fn has_table(&self) -> bool {
        matches!(self, Positional::Learned | Positional::LearnedNormalized | Positional::Shortformer)
    }

    /// TransformerLens's `positional_embedding_type`, or a name of our own for what it lacks.
    pub fn native_name(&self) -> &'static str {
        match self {
            Positional::Learned => "standard",
            Positional::LearnedNormalized => "hooklens_normalized",
            Positional::Shortformer => "shortformer",
            Positional::Alibi => "alibi",
            Positional::ScaledAlibi => "hooklens_scaled_alibi",
            Positional::Rotary(_) => "rotary",
            Positional::None => "none",
        }
    }
}
