//! Kinds of normalization layers.

use serde::{Deserialize, Serialize};

/// Kind of norm, and whether it has weights.
///
/// ```
/// use hooklens::NormKind;
/// assert!(NormKind::LayerNorm.centers() && !NormKind::Rms.centers());
/// assert!(!NormKind::LayerNormPre.has_weight());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NormKind {
    /// Layer norm with weight and bias.
    LayerNorm,
    /// Layer norm without weights, which were folded into the next layer.
    LayerNormPre,
    /// RMS norm with a weight.
    Rms,
    /// RMS norm without a weight, which was folded into the next layer.
    RmsPre,
    /// No norm.
    None,
}

impl NormKind {
    /// Whether the norm subtracts the mean.
    ///
    /// ```
    /// use hooklens::NormKind;
    /// assert!(NormKind::LayerNormPre.centers() && !NormKind::RmsPre.centers());
    /// ```
    pub fn centers(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::LayerNormPre)
    }

    /// Whether the norm has a weight.
    ///
    /// ```
    /// use hooklens::NormKind;
    /// assert!(NormKind::Rms.has_weight() && !NormKind::RmsPre.has_weight() && !NormKind::None.has_weight());
    /// ```
    pub fn has_weight(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::Rms)
    }

    /// The same kind of norm, without weights.
    pub(crate) fn folded(self) -> Self {
        match self {
            NormKind::LayerNorm | NormKind::LayerNormPre => NormKind::LayerNormPre,
            NormKind::Rms | NormKind::RmsPre => NormKind::RmsPre,
            NormKind::None => NormKind::None,
        }
    }

    /// TransformerLens's `normalization_type`.
    ///
    /// ```
    /// assert_eq!(hooklens::NormKind::LayerNormPre.native_name(), Some("LNPre"));
    /// ```
    pub fn native_name(self) -> Option<&'static str> {
        match self {
            NormKind::LayerNorm => Some("LN"),
            NormKind::LayerNormPre => Some("LNPre"),
            NormKind::Rms => Some("RMS"),
            NormKind::RmsPre => Some("RMSPre"),
            NormKind::None => None,
        }
    }
}
