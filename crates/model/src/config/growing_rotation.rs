//! Rotations that depend on the length of the text.

use super::{RopeScaling, TransformerConfig};

/// A context length from which on a text is rotated in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    pub context: usize,
    /// Whether all longer texts are rotated alike (LongRoPE), and not each length in its own way (dynamic NTK).
    pub(crate) once: bool,
}

impl TransformerConfig {
    /// The context lengths beyond which layers rotate in another way.
    pub fn rotation_thresholds(&self) -> Vec<Threshold> {
        let rotaries = (0..self.n_layers).filter_map(|layer| self.rotary(layer));
        let thresholds = rotaries.filter_map(|rotary| match rotary.scaling {
            RopeScaling::Long { original_context, .. } => Some(Threshold { context: original_context, once: true }),
            RopeScaling::Dynamic { original_context, .. } => Some(Threshold { context: original_context, once: false }),
            _ => None,
        });
        thresholds.collect()
    }

    /// Whether a text of this length is rotated in another way than a short one.
    pub fn outgrows(&self, len: usize) -> bool {
        self.rotation_thresholds().iter().any(|threshold| len > threshold.context)
    }
}
