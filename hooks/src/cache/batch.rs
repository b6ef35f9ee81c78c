//! Selecting batch rows and dropping the batch axis.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ActivationCache;
use crate::error::HookError;
use crate::point::Axis;

impl ActivationCache {
    /// Selects the given batch rows of the recording. Points without a batch axis, such as the points
    /// inside individual experts, are left out.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(2, 3);
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([2, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let second = cache.rows(1..2)?;
    /// assert_eq!(second.activation("hook_embed")?.shape(), [1, 3, 4]);
    /// assert!(cache.rows(1..5).is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Rows`] if the range is empty or exceeds the batch.
    pub fn rows(&self, rows: Range<usize>) -> Result<ActivationCache, HookError> {
        let [batch, len] = self.rows;
        if rows.is_empty() || rows.end > batch {
            return Err(HookError::Rows { asked: rows, batch });
        }
        let (mut held, mut gradients) = (BTreeMap::new(), BTreeMap::new());
        let all = self.held.iter().map(|entry| (false, entry)).chain(self.gradients.iter().map(|entry| (true, entry)));
        for (is_gradient, (id, activation)) in all {
            let inner = match self.catalog.info(*id).axes.first() {
                // The batch axis of a single row may have been dropped.
                Some(Axis::Batch) => activation.shape()[0] / if self.has_batch { batch } else { 1 },
                Some(Axis::BatchPos | Axis::BatchPosHead) => activation.shape()[0] / batch.max(1),
                _ => continue,
            };
            let own = activation.narrow(0, rows.start * inner, rows.end * inner);
            if is_gradient {
                gradients.insert(*id, own)
            } else {
                held.insert(*id, own)
            };
        }
        let origin = self.origin.rows(&rows);
        let (catalog, has_batch) = (self.catalog.clone(), self.has_batch);
        Ok(Self { catalog, held, gradients, has_batch, rows: [rows.len(), len], origin })
    }

    /// Drops the batch axis of every activation. A second call does nothing.
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
    /// let flat = cache.remove_batch_dim()?;
    /// assert_eq!(flat.activation("hook_embed")?.shape(), [3, 4]);
    /// assert!(!flat.has_batch_dim());
    /// // A typed point keeps its rank.
    /// assert_eq!(flat.get(Point::<3>::new("hook_embed"))?.dims(), [1, 3, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Batch`] if the batch has more than one row.
    pub fn remove_batch_dim(mut self) -> Result<Self, HookError> {
        if !self.has_batch {
            return Ok(self);
        }
        for (id, activation) in self.held.iter_mut().chain(&mut self.gradients) {
            if self.catalog.info(*id).axes.first() == Some(&Axis::Batch) {
                match activation.shape() {
                    [1, rest @ ..] => *activation = activation.reshape(rest),
                    [batch, ..] => return Err(HookError::Batch { batch: *batch }),
                    [] => {}
                }
            }
        }
        self.has_batch = false;
        Ok(self)
    }
}
