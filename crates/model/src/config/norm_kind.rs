//! Kinds of normalization layers.

use serde::{Deserialize, Serialize};

/// Kind of norm, and whether it has weights.
///
/// ```
/// use hooklens::NormKind;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// assert_eq!(model.config().norm(), NormKind::LayerNorm);
/// let folded = model.processed(&Processing::standard())?;
/// assert_eq!(folded.config().norm(), NormKind::LayerNormPre);
/// # Ok::<(), hooklens::Error>(())
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

/// Properties of a kind of norm.
pub trait NormDetails {
    /// Whether the norm subtracts the mean.
    ///
    /// ```
    /// use hooklens_model::config::{NormDetails, NormKind};
    /// assert!(NormKind::LayerNormPre.centers() && !NormKind::RmsPre.centers());
    /// ```
    fn centers(self) -> bool;

    /// Whether the norm has a weight.
    ///
    /// ```
    /// use hooklens_model::config::{NormDetails, NormKind};
    /// assert!(NormKind::Rms.has_weight() && !NormKind::RmsPre.has_weight() && !NormKind::None.has_weight());
    /// ```
    fn has_weight(self) -> bool;
}

impl NormDetails for NormKind {
    fn centers(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::LayerNormPre)
    }

    fn has_weight(self) -> bool {
        matches!(self, NormKind::LayerNorm | NormKind::Rms)
    }
}

impl NormKind {
    /// The same kind of norm, without weights.
    pub(crate) fn folded(self) -> Self {
        match self {
            NormKind::LayerNorm | NormKind::LayerNormPre => NormKind::LayerNormPre,
            NormKind::Rms | NormKind::RmsPre => NormKind::RmsPre,
            NormKind::None => NormKind::None,
        }
    }
}
