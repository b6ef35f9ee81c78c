//! Rotary embeddings that depend on the length of the text.

use super::{RopeScaling, TransformerConfig};

/// Context length beyond which the rotary frequencies change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    pub context: usize,
    /// Whether all longer texts use the same frequencies (LongRoPE) instead of depending on the length (dynamic NTK).
    pub(crate) once: bool,
}

impl TransformerConfig {
    /// Context lengths beyond which the rotary frequencies of some layer change.
    pub fn rotation_thresholds(&self) -> Vec<Threshold> {
        let rotaries = (0..self.n_layers()).filter_map(|layer| self.rotary(layer));
        let thresholds = rotaries.filter_map(|rotary| match rotary.scaling {
            RopeScaling::Long { original_context, .. } => Some(Threshold { context: original_context, once: true }),
            RopeScaling::Dynamic { original_context, .. } => Some(Threshold { context: original_context, once: false }),
            _ => None,
        });
        thresholds.collect()
    }

    /// Whether a text of this length uses different rotary frequencies than a short one.
    pub fn outgrows(&self, len: usize) -> bool {
        self.rotation_thresholds().iter().any(|threshold| len > threshold.context)
    }
}
