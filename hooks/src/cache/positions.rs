//! Selecting positions of a recording.

use std::collections::BTreeMap;

use super::ActivationCache;
use crate::activation::Activation;
use crate::cache::Provenance;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::point::{Axis, PointInfo};
use crate::positions::Positions;
use crate::recorded_rows::RecordedRows;

impl ActivationCache {
    /// Selects positions of each row, as if the run had recorded with [`Record::positions`](crate::Record::positions).
    /// Points without positions, such as the points inside individual experts, are left out.
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
    /// let last = cache.positions(-1)?;
    /// assert_eq!(last.activation("hook_embed")?.shape(), [1, 1, 4]);
    /// assert!(last.positions(0).is_err()); // only the last position is recorded
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NoPosition`] for a position that was not recorded, [`HookError::Positions`] for a position outside
    /// a row's text, [`HookError::PositionsOfRows`] if positions are given for a different number of rows, or
    /// [`HookError::UnevenPositions`] if rows have different numbers of these positions.
    pub fn positions(&self, positions: impl Into<Positions>) -> Result<ActivationCache, HookError> {
        let positions = positions.into();
        let own = self.recorded_rows()?;
        let places = own.choose(&positions)?;
        // The encoder's rows hold different texts.
        let is_of_encoder =
            |id: &PointId| !std::ptr::eq(own, self.origin.rows_of(self.catalog.info(*id)).unwrap_or(own));
        let encoder = match self.held.keys().any(is_of_encoder) {
            true => self
                .origin
                .encoder_rows()
                .map(|rows| Ok::<_, HookError>((rows, rows.choose(&positions)?)))
                .transpose()?,
            false => None,
        };
        let width = places.first().map_or(0, Vec::len);
        let mut held = BTreeMap::new();
        for (id, activation) in &self.held {
            let (rows, places) = match &encoder {
                Some((rows, places)) if is_of_encoder(id) => (*rows, places),
                _ => (own, &places),
            };
            if let Some(cut) = self.cut(self.catalog.info(*id), activation, rows, places) {
                held.insert(*id, cut);
            }
        }
        Ok(Self {
            catalog: self.catalog.clone(),
            held,
            gradients: BTreeMap::new(),
            has_batch: self.has_batch,
            rows: [own.batch(), width],
            origin: self.origin.columns(&places, encoder.as_ref().map(|(_, places)| places.as_slice())),
        })
    }

    fn cut(
        &self,
        point: &PointInfo,
        activation: &Activation,
        rows: &RecordedRows,
        places: &[Vec<usize>],
    ) -> Option<Activation> {
        let together = matches!(point.axes.first(), Some(Axis::BatchPos | Axis::BatchPosHead));
        let axis = point.axes.iter().position(|axis| matches!(axis, Axis::Pos | Axis::Query));
        if together {
            let (apart, width) = (apart(activation, [rows.batch(), rows.len()]), places[0].len());
            let cut = apart.select_by_row(1, 0, places);
            let first = rows.batch() * width * apart.shape()[2];
            return Some(cut.reshape(&[&[first], &activation.shape()[1..]].concat()));
        }
        let axis = axis?;
        let whole = match self.has_batch {
            true => activation.clone(),
            false => activation.reshape(&[&[1], activation.shape()].concat()),
        };
        // Rotated keys may start with the keys of the key-value cache.
        let before = if point.with_past { whole.shape()[axis].saturating_sub(rows.len()) } else { 0 };
        let cut = whole.select_by_row(axis, before, places);
        Some(if self.has_batch { cut } else { cut.reshape(&cut.shape()[1..]) })
    }
}

/// Splits a leading axis that combines batch and position into `[batch, pos, inner, ..]`.
pub(crate) fn apart(activation: &Activation, [batch, len]: [usize; 2]) -> Activation {
    let inner = activation.shape()[0] / (batch * len).max(1);
    activation.reshape(&[&[batch, len, inner], &activation.shape()[1..]].concat())
}
