//! Concatenating recordings of consecutive positions, and truncating them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ActivationCache, apart};
use crate::activation::Activation;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::point::Axis;

impl ActivationCache {
    /// Concatenates this recording with a recording of the positions that follow. The result is what a single run over
    /// all positions would have recorded. If this recording has one row, the row is repeated for each row of `after`.
    /// Scores and patterns of the earlier positions get columns for the later keys, filled as for masked keys.
    /// Rotated keys of the later run that already include the earlier keys are kept as they are.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let recorded = |rows: Rows<'_>| -> Result<ActivationCache, HookError> {
    /// #     let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// #     for id in ids {
    /// #         run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// #     }
    /// #     run.finish()
    /// # };
    /// let first = recorded(Rows::new(1, 3))?; // three positions, and the three after them
    /// let second = recorded(Rows { offset: 3, ..Rows::new(1, 3) })?;
    /// assert_eq!(first.stitched(&second)?.activation("hook_embed")?.shape(), [1, 6, 4]);
    /// assert!(second.stitched(&first).is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotRecorded`] if the two recordings hold different points. [`HookError::Stitch`] if a point has no
    /// positions or has lost its batch axis, if the batch sizes differ, or if `after` does not continue this recording:
    /// its model or text is different, or it starts at an earlier position.
    pub fn stitched(&self, after: &ActivationCache) -> Result<ActivationCache, HookError> {
        // A run that computed none of the requested positions adds nothing.
        if after.origin.left_out.is_some() && self.rows[0] == after.rows[0] {
            self.check_continued(after)?;
            let mut longer = Self { origin: self.origin.stitched(&after.origin), ..self.clone() };
            // Scores and patterns get columns for the later keys, filled as for masked keys.
            let keys = longer.origin.keys();
            for (id, activation) in &mut longer.held {
                let point = self.catalog.info(*id);
                let axis = point.axes.iter().position(|axis| *axis == Axis::Key).filter(|_| !point.keys_of_encoder);
                if let Some(axis) = axis.filter(|_| self.has_batch) {
                    let missing = keys.saturating_sub(activation.shape()[axis]);
                    *activation = activation.lengthened(axis, missing, point.filler.value());
                }
            }
            return Ok(longer);
        }
        if self.origin.left_out.is_some() && self.rows[0] == after.rows[0] {
            self.check_continued(after)?;
            return Ok(Self { origin: self.origin.stitched(&after.origin), ..after.clone() });
        }
        let ([mine, before], [theirs, behind]) = (self.rows, after.rows);
        if mine == theirs || mine == 1 {
            self.check_continued(after)?;
        }
        let name = |id: &PointId| self.catalog.info(*id).name.to_string();
        let only_one = self.held.keys().find(|id| !after.held.contains_key(id));
        if let Some(id) = only_one.or_else(|| after.held.keys().find(|id| !self.held.contains_key(id))) {
            return Err(HookError::NotRecorded { name: name(id), held: after.held.len(), nearest: Vec::new() });
        }
        let fails = |point: String, reason| Err(HookError::Stitch { point, reason });
        let mut held = BTreeMap::new();
        for (id, first) in &self.held {
            let (axes, second) = (self.catalog.info(*id).axes, &after.held[id]);
            if !self.has_batch || !after.has_batch {
                return fails(name(id), "the batch axis of a recording was removed");
            }
            if mine != theirs && mine != 1 {
                return fails(name(id), "they have different numbers of rows");
            }
            // An axis that combines batch and position is split here and merged again below.
            let together = matches!(axes.first(), Some(Axis::BatchPos | Axis::BatchPosHead));
            let (mut first, second) = if together {
                (apart(first, self.rows), apart(second, after.rows))
            } else {
                (first.clone(), second.clone())
            };
            if mine != theirs {
                first = first.repeat_row(theirs);
            }
            let joined = if together {
                let joined = Activation::cat(&[first, second], 1);
                let [batch, len, inner, rest @ ..] = joined.shape() else {
                    return fails(name(id), "the point has no position axis");
                };
                joined.reshape(&[&[batch * len * inner], rest].concat())
            } else if let Some(key) = axes.iter().position(|axis| *axis == Axis::Key) {
                let hidden = self.catalog.info(*id).filler.value();
                let missing = second.shape()[key].saturating_sub(first.shape()[key]);
                let query = axes.iter().position(|axis| *axis == Axis::Query).unwrap_or(key);
                Activation::cat(&[first.lengthened(key, missing, hidden), second], query)
            } else if let Some(axis) = axes.iter().position(|axis| *axis == Axis::Pos) {
                if second.shape()[axis] > behind { second } else { Activation::cat(&[first, second], axis) }
            } else {
                return fails(name(id), "the point has no position axis");
            };
            held.insert(*id, joined);
        }
        let (catalog, gradients, origin) = (self.catalog.clone(), BTreeMap::new(), self.origin.stitched(&after.origin));
        Ok(Self { catalog, held, gradients, has_batch: true, rows: [theirs, before + behind], origin })
    }

    /// Fails if `after` is known not to continue this recording.
    fn check_continued(&self, after: &ActivationCache) -> Result<(), HookError> {
        // Parts spliced into a model change the ids of its points.
        let name = |cache: &ActivationCache, id: &PointId| cache.catalog.info(*id).name.clone();
        let alike = |id: &PointId| id.index() < after.catalog.points().len() && name(self, id) == name(after, id);
        let same_points = Arc::ptr_eq(&self.catalog, &after.catalog) || self.held.keys().all(alike);
        let reason = match same_points {
            true => self.origin.why_not_continued_by(&after.origin),
            false => Some("their models have different spliced parts"),
        };
        let Some(reason) = reason else { return Ok(()) };
        let named = self.names().next().or(after.names().next());
        let point = named.unwrap_or("the requested positions").to_string();
        Err(HookError::Stitch { point, reason })
    }
}

/// Truncates a recording to its first `count` positions. Points without positions are left out, and if there are
/// several rows, so are points that combine batch and position in one axis. A `count` beyond the end keeps everything.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
/// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
/// # for id in ids {
/// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// # }
/// # let cache = run.finish()?;
/// assert_eq!(truncated(&cache, 2).activation("hook_embed")?.shape(), [1, 2, 4]);
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
pub fn truncated(cache: &ActivationCache, count: usize) -> ActivationCache {
    let [batch, len] = cache.rows;
    let count = count.min(len);
    let mut held = BTreeMap::new();
    for (id, activation) in &cache.held {
        let axes = cache.catalog.info(*id).axes;
        let (dropped, shape) = (usize::from(!cache.has_batch), activation.shape());
        let cut = match axes.first() {
            Some(Axis::BatchPos | Axis::BatchPosHead) if batch == 1 => {
                activation.narrow(0, 0, shape[0] / len.max(1) * count)
            }
            Some(Axis::Batch) => {
                let places = axes.iter().enumerate().filter(|(_, a)| matches!(a, Axis::Pos | Axis::Query | Axis::Key));
                let shorter = |activation: Activation, (place, _): (usize, &Axis)| {
                    let axis = place - dropped;
                    // Keys from the key-value cache come before the recorded positions.
                    let before = activation.shape()[axis] - len.min(activation.shape()[axis]);
                    activation.narrow(axis, 0, before + count)
                };
                places.fold(activation.clone(), shorter)
            }
            _ => continue,
        };
        held.insert(*id, cut);
    }
    let (catalog, gradients, origin) = (cache.catalog.clone(), BTreeMap::new(), cache.origin.first(count));
    ActivationCache { catalog, held, gradients, has_batch: cache.has_batch, rows: [batch, count], origin }
}
