//! How a recorded tensor is stored: positions, element type, device, and batch axis.

use super::Run;
use crate::activation::Activation;
use crate::cache::apart;
use crate::point::{Axis, PointInfo};
use crate::positions::PositionSlice;

impl Run<'_, '_> {
    /// Converts a tensor for storage: slices it, casts it, moves it, and drops the batch axis.
    pub(super) fn stored(&self, point: &PointInfo, tensor: &Activation) -> Activation {
        let mut kept = tensor.clone();
        if self.kept != PositionSlice::All {
            kept = self.sliced(point, kept);
        }
        if let Some(dtype) = self.record.dtype {
            kept = kept.cast(dtype);
        }
        if let Some(device) = &self.record.device {
            kept = kept.to_device(device);
        }
        if self.record.remove_batch && point.axes.first() == Some(&Axis::Batch) {
            kept = kept.reshape(&kept.shape()[1..]);
        }
        kept
    }

    /// Number of cached positions at the start of a tensor.
    pub(super) fn positions_before(&self, point: &PointInfo, shape: &[usize]) -> Option<usize> {
        let axis = point.axes.iter().position(|a| *a == Axis::Pos).filter(|_| point.with_past)?;
        shape.get(axis).map(|all| all.saturating_sub(self.rows().len))
    }

    fn sliced(&self, point: &PointInfo, tensor: Activation) -> Activation {
        if let Some(axis) = point.axes.iter().position(|a| matches!(a, Axis::Pos | Axis::Query)) {
            // Keys include cached keys; positions count from the run's first token.
            let before = self.positions_before(point, tensor.shape()).unwrap_or(0);
            return self.pick(&tensor, axis, before);
        }
        // Batch, position (and head) share one axis: split it, slice it, and merge it again.
        let [_, rest @ ..] = tensor.shape() else { return tensor };
        let rest = rest.to_vec();
        match point.axes.first() {
            Some(Axis::BatchPos | Axis::BatchPosHead) => {
                let picked = self.pick(&apart(&tensor, [self.rows().batch, self.rows().len]), 1, 0);
                let together =
                    [&[picked.shape().iter().product::<usize>() / rest.iter().product::<usize>().max(1)], &rest[..]]
                        .concat();
                picked.reshape(&together)
            }
            _ => tensor,
        }
    }

    /// Selects the kept positions of an axis that starts with `before` other entries.
    fn pick(&self, tensor: &Activation, axis: usize, before: usize) -> Activation {
        match &self.kept {
            PositionSlice::All => tensor.clone(),
            PositionSlice::Range(range) => tensor.narrow(axis, before + range.start, before + range.end),
            PositionSlice::ByRow(rows) => tensor.select_by_row(axis, before, rows),
        }
    }
}
