//! Rows of the batch, and the batch axis.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ActivationCache;
use crate::error::HookError;
use crate::point::Axis;

impl ActivationCache {
    /// These rows of the batch; what has no rows of its own, such as a mixture's experts, is left
    /// out.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 2, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([2, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.rows_recorded(), [2, 3]); // rows, positions
    /// let second = cache.rows(1..2)?;
    /// assert_eq!(second.activation("hook_embed")?.shape(), [1, 3, 4]);
    /// assert!(cache.rows(1..5).is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Rows`] if the batch has fewer rows or its axis is gone.
    pub fn rows(&self, rows: Range<usize>) -> Result<ActivationCache, HookError> {
        let [batch, len] = self.rows;
        if rows.is_empty() || rows.end > batch || !self.has_batch {
            return Err(HookError::Rows { asked: rows, batch });
        }
        let (mut held, mut gradients) = (BTreeMap::new(), BTreeMap::new());
        let all = self.held.iter().map(|entry| (false, entry)).chain(self.gradients.iter().map(|entry| (true, entry)));
        for (is_gradient, (id, activation)) in all {
            let inner = match self.catalog.info(*id).axes.first() {
                Some(Axis::Batch) => 1,
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
        Ok(Self { catalog: self.catalog.clone(), held, gradients, has_batch: true, rows: [rows.len(), len] })
    }

    /// Drops the batch axis of every activation. A second call does nothing.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
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
