//! Masks of a key-value cache: which positions are padding, and which are hidden from attention.

use super::KeyValueCache;
use crate::config::Window;
use crate::error::CacheError;

impl KeyValueCache {
    /// Number of columns covered by the mask.
    pub(super) fn given_mask_len(&self) -> usize {
        self.given_mask.first().map_or(0, Vec::len)
    }

    /// Number of unmasked positions in each row, including hidden ones. This is the position of the row's next token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::PaddingSide;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let rows = Tokens::padded(&[vec![0, 51, 59], vec![0, 51]], 0, PaddingSide::Left)?;
    /// let cache = model.prefill(&rows)?;
    /// assert_eq!((cache.len(), cache.lengths()), (3, vec![3, 2]));
    /// assert_eq!(cache.attention_mask()[1], [false, true, true]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn lengths(&self) -> Vec<usize> {
        let without_mask = self.len() - self.given_mask_len();
        (0..self.batch())
            .map(|row| self.given_mask_row(row).iter().filter(|real| **real).count() + without_mask)
            .collect()
    }

    /// Mask of the positions visible to attention, `[batch][position]`: unmasked and not hidden.
    pub fn attention_mask(&self) -> Vec<Vec<bool>> {
        let seen = |row: usize| {
            let mut seen = self.real(row);
            let hidden = self.hidden_before.get(row).map_or(0, |before| (*before).min(seen.len()));
            seen[..hidden].fill(false);
            seen
        };
        (0..self.batch()).map(seen).collect()
    }

    pub(super) fn given_mask_row(&self, row: usize) -> &[bool] {
        self.given_mask.get(row).map_or(&[], Vec::as_slice)
    }

    /// Mask of a row, `true` at unmasked positions.
    pub(super) fn real(&self, row: usize) -> Vec<bool> {
        let mut real = self.given_mask_row(row).to_vec();
        real.resize(self.len(), true);
        real
    }

    /// Masks of all rows, `true` at unmasked positions.
    pub(super) fn real_rows(&self) -> Vec<Vec<bool>> {
        (0..self.batch()).map(|row| self.real(row)).collect()
    }

    /// First column of each row that is visible to attention.
    pub(super) fn hidden_rows(&self) -> Vec<usize> {
        let mut rows = self.hidden_before.clone();
        rows.resize(self.batch(), 0);
        rows
    }

    /// Appends a mask for new positions, `true` for unmasked ones, and returns the whole mask, `[batch][position]`. The
    /// mask is stored unless the cache is frozen. Positions without a mask count as unmasked. Runs do this
    /// automatically. If you call [`KeyValueCache::append`] yourself, call this before or after it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum")?;
    /// cache.freeze();
    /// let all = cache.append_attention_mask(&[vec![true, false]])?; // returned, but not stored
    /// assert_eq!((all[0].clone(), cache.len()), (vec![true, true, true, true, false], 3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Batch`] if the number of rows differs from the cache's (a frozen cache with one row accepts any
    /// number), or [`CacheError::Ragged`] if rows differ in length.
    pub fn append_attention_mask(&mut self, new: &[Vec<bool>]) -> Result<Vec<Vec<bool>>, CacheError> {
        self.check_batch(new.len())?;
        let len = new.first().map_or(0, Vec::len);
        if new.iter().any(|row| row.len() != len) {
            return Err(CacheError::Ragged);
        }
        let past = |row: usize| self.given_mask_row(if self.batch() == 1 { 0 } else { row });
        let whole: Vec<_> = new.iter().enumerate().map(|(row, new)| [past(row), new].concat()).collect();
        if !self.frozen {
            self.given_mask.clone_from(&whole);
        }
        Ok(whole)
    }

    /// Truncates the given mask to this number of rows and columns, which removes columns added by a failed run.
    pub(super) fn restore_mask(&mut self, [rows, columns]: [usize; 2]) {
        self.given_mask.iter_mut().for_each(|row| row.truncate(columns));
        self.given_mask.resize(rows, Vec::new());
    }

    /// Checks that there are `count` rows starting at `slot`.
    pub(super) fn check_slots(&self, slot: usize, count: usize) -> Result<(), CacheError> {
        let batch = self.batch();
        if slot >= batch {
            return Err(CacheError::Slot { slot, batch });
        }
        if count > batch - slot {
            return Err(CacheError::Slots { slot, count, batch });
        }
        Ok(())
    }

    /// First column that the next query of any row can see.
    pub(super) fn first_needed(&self, layer: usize) -> usize {
        // Layers that reuse another layer's keys need nothing.
        if !self.entries[layer].holds() {
            return self.len();
        }
        self.len() - needed(&self.given_mask, self.len(), self.shape.windows[layer])
    }

    /// Mask of the positions visible to attention, for `batch` rows; `None` if all are visible.
    pub(crate) fn past_mask(&self, batch: usize) -> Option<Vec<Vec<bool>>> {
        let hidden = self.hides();
        if !hidden && self.given_mask.iter().all(|row| !row.contains(&false)) {
            return None;
        }
        Some(self.for_rows(self.attention_mask(), batch))
    }

    /// Mask that is true at every position that is not padding, even one that is hidden from attention, for `batch`
    /// rows; `None` if no position is hidden.
    pub(crate) fn past_counted(&self, batch: usize) -> Option<Vec<Vec<bool>>> {
        self.hides().then(|| self.for_rows(self.real_rows(), batch))
    }

    /// Whether any position is hidden from attention.
    pub(super) fn hides(&self) -> bool {
        self.hidden_before.iter().any(|before| *before > 0)
    }

    fn for_rows(&self, rows: Vec<Vec<bool>>, batch: usize) -> Vec<Vec<bool>> {
        if rows.len() == batch { rows } else { vec![rows[0].clone(); batch] }
    }
}

/// Whether any position of a cache is hidden from attention.
pub fn hides(cache: &KeyValueCache) -> bool {
    cache.hides()
}

/// Number of trailing columns, out of `len`, that the next query of any row can see. Columns beyond the mask's end are
/// unmasked.
pub(super) fn needed(given_mask: &[Vec<bool>], len: usize, window: Option<Window>) -> usize {
    let Some(window) = window else { return len };
    let of_row = |row: &Vec<bool>| {
        let real = row.iter().filter(|real| **real).count() + len - row.len();
        let mut hidden = window.oldest(real);
        let first = (0..len).position(|column| {
            let real = row.get(column).copied().unwrap_or(true);
            if real && hidden > 0 {
                hidden -= 1;
                return false;
            }
            real
        });
        first.map_or(0, |first| len - first)
    };
    given_mask.iter().map(of_row).max().unwrap_or(0)
}
