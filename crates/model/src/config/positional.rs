//! Positional embeddings.

use serde::{Deserialize, Serialize};

use super::Rotary;

/// Kind of positional embedding.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::Positional;
/// let has_vectors = |positional| {
///     let config = TransformerConfig::new(1, 16, 2, 20, 8).with_positional(positional);
///     Ok::<_, hooklens::Error>(HookedTransformer::random(config, 0, &Device::flex())?.w_pos().is_some())
/// };
/// assert!(has_vectors(Positional::Learned)? && !has_vectors(Positional::Alibi)?);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Positional {
    /// Learned embeddings, added to the token embeddings.
    Learned,
    /// Learned embeddings, added before the embedding is normalized, so that `hook_embed` includes them (BART).
    LearnedNormalized,
    /// Rotary embeddings of queries and keys.
    Rotary(Rotary),
    /// ALiBi (Press et al. 2021): a penalty on scores that grows linearly with distance, with a slope per head.
    Alibi,
    /// Falcon's variant of ALiBi: the slope times the key's position, rounded to bf16, is added to the scores before
    /// they are divided by `attn_scale`.
    ScaledAlibi,
    /// Learned embeddings, added to the input of queries and keys but never to the residual stream (Press et al. 2020).
    Shortformer,
    /// No positional embedding.
    None,
}

impl From<Rotary> for Positional {
    fn from(rotary: Rotary) -> Self {
        Self::Rotary(rotary)
    }
}

impl Positional {
    /// Whether there is a table of learned position embeddings.
    pub(crate) fn has_table(&self) -> bool {
        matches!(self, Positional::Learned | Positional::LearnedNormalized | Positional::Shortformer)
    }
}
