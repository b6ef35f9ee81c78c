//! Description of a dump's tensors in its manifest.

use hooklens_hooks::Axis;
use serde::{Deserialize, Serialize};

/// A tensor in a dump's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredTensor {
    /// Name of each axis, outermost first.
    axes: Vec<String>,
    /// Length of each axis for all prompts together, padded to the longest. `None` for an axis whose length depends on
    /// how the prompts are split into batches.
    shape: Vec<Option<usize>>,
    /// Element type.
    dtype: String,
    /// Whether only nonzero elements are stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sparse: bool,
}

impl StoredTensor {
    /// Sets the lengths that depend on the prompts, for rows padded to the longest.
    pub(super) fn set_lengths(&mut self, rows: usize, positions: usize, keys: usize) {
        for (number, (axis, length)) in self.axes.iter().zip(&mut self.shape).enumerate() {
            let own = [(Axis::Batch, rows), (Axis::Pos, positions), (Axis::Query, positions), (Axis::Key, keys)];
            let own = own.into_iter().find(|(own, _)| axis == own.name());
            // An axis that combines rows and positions has no length of its own.
            if length.is_none() && (number > 0 || axis == Axis::Batch.name()) {
                *length = own.map(|(_, length)| length);
            }
        }
    }

    pub(super) fn new(axes: &[Axis], shape: Vec<Option<usize>>, dtype: safetensors::Dtype, sparse: bool) -> Self {
        let axes = axes.iter().map(|axis| axis.name().to_string()).collect();
        Self { axes, shape, dtype: dtype.to_string().to_lowercase(), sparse }
    }

    /// Extends the shape by the prompts of the next shard.
    pub(super) fn join(&mut self, other: &Self) {
        for ((axis, own), other) in self.axes.iter().zip(&mut self.shape).zip(&other.shape) {
            *own = own.zip(*other).map(|(own, other)| match axis == Axis::Batch.name() {
                true => own.saturating_add(other),
                false => own.max(other),
            });
        }
    }
}
