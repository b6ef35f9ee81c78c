//! Query and key norms.

use serde::{Deserialize, Serialize};

use super::NormKind;

/// How queries and keys are normalized. The norm uses the model's `eps`.
///
/// ```
/// use hooklens::{NormKind, TransformerConfig};
/// use hooklens_model::config::{QkNorm, QkNormWeights, Settings};
/// assert_eq!(QkNorm::HEADS.kind, NormKind::Rms); // Qwen 3
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// // StableLM 2: a layer norm, with separate weights for each head.
/// let own = QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS };
/// plain.with_qk_norm(own).validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QkNorm {
    /// Kind of norm.
    pub kind: NormKind,
    /// Which values are normalized together, and how heads share weights.
    pub weights: QkNormWeights,
    /// Whether the norm is applied after the rotation.
    pub after_rotation: bool,
    /// Whether only layers with rotary embeddings have the norm (Llama 4).
    #[serde(default)]
    pub rotating_layers: bool,
    /// Whether values are also normalized, by an RMS norm without weights (Gemma 4).
    #[serde(default)]
    pub values: bool,
}

/// Which values a query or key norm normalizes together, and the shape of its weights.
///
/// ```
/// use hooklens_model::config::QkNormWeights;
/// assert_eq!(QkNormWeights::EachHead.width(4, 16), 64);
/// assert_eq!(QkNormWeights::Shared.width(4, 16), 16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QkNormWeights {
    /// Per head, with weights `[d_head]` shared by all heads (Qwen 3, Phi).
    Shared,
    /// Per head, with separate weights for each head, `[head * d_head]` (StableLM, Cohere).
    EachHead,
    /// Over all heads together, with weights `[head * d_head]` (OLMo 2).
    Whole,
}

impl QkNorm {
    /// RMS norm per head with shared weights, before the rotation (Qwen 3).
    pub const HEADS: Self = Self {
        kind: NormKind::Rms,
        weights: QkNormWeights::Shared,
        after_rotation: false,
        rotating_layers: false,
        values: false,
    };
    /// RMS norm over all heads together, before the rotation (OLMo 2).
    pub const WHOLE: Self = Self { weights: QkNormWeights::Whole, ..Self::HEADS };
}

impl QkNormWeights {
    /// Number of weights for `heads` heads of width `d_head`.
    ///
    /// ```
    /// use hooklens_model::config::QkNormWeights;
    /// assert_eq!(QkNormWeights::Whole.width(2, 8), 16);
    /// ```
    pub fn width(self, heads: usize, d_head: usize) -> usize {
        match self {
            Self::Shared => d_head,
            Self::EachHead | Self::Whole => heads * d_head,
        }
    }
}
