//! What is kept of a recorded tensor: positions, element type, device and batch axis.

use super::{Rows, Run};
use crate::activation::Activation;
use crate::cache::apart;
use crate::error::HookError;
use crate::point::{Axis, PointInfo};
use crate::positions::Kept;
use crate::record::Record;

/// The columns of these rows that a record keeps.
pub(super) fn kept(record: &Record, rows: &Rows<'_>) -> Result<Kept, HookError> {
    if record.remove_batch && rows.batch != 1 {
        return Err(HookError::Batch { batch: rows.batch });
    }
    record.positions.recorded(rows, record.counting)
}

impl Run<'_, '_> {
    /// The tensor as it is to be kept: sliced, cast, moved, without batch.
    pub(super) fn stored(&self, point: &PointInfo, tensor: &Activation) -> Activation {
        let mut kept = tensor.clone();
        if self.kept != Kept::All {
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

    /// How many positions of a cache a tensor begins with.
    pub(super) fn positions_before(&self, point: &PointInfo, shape: &[usize]) -> Option<usize> {
        let axis = point.axes.iter().position(|a| *a == Axis::Pos).filter(|_| point.with_past)?;
        shape.get(axis).map(|all| all.saturating_sub(self.rows().len))
    }

    fn sliced(&self, point: &PointInfo, tensor: Activation) -> Activation {
        if let Some(axis) = point.axes.iter().position(|a| matches!(a, Axis::Pos | Axis::Query)) {
            // Keys include those of a cache; positions count from the run's first.
            let before = self.positions_before(point, tensor.shape()).unwrap_or(0);
            return self.pick(&tensor, axis, before);
        }
        // Batch, position (and head) in one axis: take it apart, slice, put it together.
        let [_, rest @ ..] = tensor.shape() else { return tensor };
        let rest = rest.to_vec();
        match point.axes.first() {
            Some(Axis::BatchPos | Axis::BatchPosHead) => {
                let picked = self.pick(&apart(&tensor, [self.rows().batch, self.rows().len]), 1, 0);
                let together = [&[picked.len() / rest.iter().product::<usize>().max(1)], &rest[..]].concat();
                picked.reshape(&together)
            }
            _ => tensor,
        }
    }

    /// The positions to keep of an axis, which begins with `before` others.
    fn pick(&self, tensor: &Activation, axis: usize, before: usize) -> Activation {
        match &self.kept {
            Kept::All => tensor.clone(),
            Kept::Range(range) => tensor.narrow(axis, before + range.start, before + range.end),
            Kept::ByRow(rows) => tensor.select_by_row(axis, before, rows),
        }
    }
}
