//! Norms of queries and keys.

use serde::{Deserialize, Serialize};

use super::NormKind;

/// How queries and keys are normalized; the norm's `eps` is the model's.
///
/// ```
/// use hooklens::{NormKind, QkNorm, QkNormWeights, TransformerConfig};
/// assert_eq!(QkNorm::HEADS.kind, NormKind::Rms); // Qwen 3
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// // StableLM 2: a layer norm, weights of each head's own.
/// let own = QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS };
/// TransformerConfig { qk_norm: Some(own), ..plain }.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QkNorm {
    /// Which norm.
    pub kind: NormKind,
    /// What is normalized, by which weights.
    pub weights: QkNormWeights,
    /// Whether it comes behind the rotation.
    pub after_rotation: bool,
    /// Whether only layers that rotate have one (Llama 4).
    #[serde(default)]
    pub rotating_layers: bool,
    /// Whether each value is normalized too, by an RMS norm without weights (Gemma 4).
    #[serde(default)]
    pub values: bool,
}

/// What a norm of queries or keys is taken over, and by what it multiplies.
///
/// ```
/// use hooklens::QkNormWeights;
/// assert_eq!(QkNormWeights::EachHead.width(4, 16), 64);
/// assert_eq!(QkNormWeights::Shared.width(4, 16), 16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QkNormWeights {
    /// Each head by itself, with the same weights `[d_head]` for all (Qwen 3, Phi).
    Shared,
    /// Each head by itself, with weights of its own `[head * d_head]` (StableLM, Cohere).
    EachHead,
    /// All heads at once, `[head * d_head]` (OLMo 2).
    Whole,
}

impl QkNorm {
    /// An RMS norm of each head, with the same weights for all, before the rotation (Qwen 3).
    pub const HEADS: Self = Self {
        kind: NormKind::Rms,
        weights: QkNormWeights::Shared,
        after_rotation: false,
        rotating_layers: false,
        values: false,
    };
    /// An RMS norm over all heads at once, before the rotation (OLMo 2).
    pub const WHOLE: Self = Self { weights: QkNormWeights::Whole, ..Self::HEADS };
}

impl QkNormWeights {
    /// Number of weights for this number of heads of this width.
    ///
    /// ```
    /// use hooklens::QkNormWeights;
    /// assert_eq!(QkNormWeights::Whole.width(2, 8), 16);
    /// ```
    pub fn width(self, heads: usize, d_head: usize) -> usize {
        match self {
            Self::Shared => d_head,
            Self::EachHead | Self::Whole => heads * d_head,
        }
    }
}
