//! Names of settings in TransformerLens's configurations.

use super::{NormKind, Positional};

/// TransformerLens's `normalization_type`.
///
/// ```
/// use hooklens_model::config::{NormKind, native_name_of_norm};
/// assert_eq!(native_name_of_norm(NormKind::LayerNormPre), Some("LNPre"));
/// ```
pub fn native_name_of_norm(norm: NormKind) -> Option<&'static str> {
    match norm {
        NormKind::LayerNorm => Some("LN"),
        NormKind::LayerNormPre => Some("LNPre"),
        NormKind::Rms => Some("RMS"),
        NormKind::RmsPre => Some("RMSPre"),
        NormKind::None => None,
    }
}

/// TransformerLens's `positional_embedding_type`, or hooklens's own name if TransformerLens has none.
pub fn native_name_of_positional(positional: &Positional) -> &'static str {
    match positional {
        Positional::Learned => "standard",
        Positional::LearnedNormalized => "hooklens_normalized",
        Positional::Shortformer => "shortformer",
        Positional::Alibi => "alibi",
        Positional::ScaledAlibi => "hooklens_scaled_alibi",
        Positional::Rotary(_) => "rotary",
        Positional::None => "none",
    }
}
