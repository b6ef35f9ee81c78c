//! The tokens whose keys and values a cache holds.

use hooklens_hooks::ModelIdentity;

use super::KeyValueCache;
use crate::error::CacheError;
use crate::tokens::Tokens;

/// Marks an unknown token: keys and values may be given without tokens.
const UNKNOWN: u32 = u32::MAX;

/// Fails if a different model computed a cache's keys and values.
pub fn check_model(cache: &KeyValueCache, model: &ModelIdentity) -> Result<(), CacheError> {
    cache.check_model(model)
}

impl KeyValueCache {
    /// The tokens of each row without padding; `None` if keys and values were given without tokens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.prefill([1, 2, 3])?;
    /// assert_eq!(cache.tokens(), Some(vec![vec![1, 2, 3]]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn tokens(&self) -> Option<Vec<Vec<u32>>> {
        let of_row = |(row, real): (usize, Vec<bool>)| -> Option<Vec<u32>> {
            let ids = self.ids.get(row).map_or(&[][..], Vec::as_slice);
            let of_column = |(column, _): (usize, &bool)| ids.get(column).copied().filter(|id| *id != UNKNOWN);
            real.iter().enumerate().filter(|(_, real)| **real).map(of_column).collect()
        };
        self.real_rows().into_iter().enumerate().map(of_row).collect()
    }

    /// The tokens of each row; `None` if they are unknown, or if they do not determine the cache's contents because
    /// something was edited, hidden, quantized, or stored in another element type.
    pub(crate) fn exact_tokens(&self) -> Option<Vec<Vec<u32>>> {
        let exact = self.interventions.is_empty() && !self.hides() && self.kind.quantization().is_none();
        let exact = exact && self.stored_as().is_none();
        self.tokens().filter(|_| exact)
    }

    /// Fails if a different model computed the keys and values.
    pub(crate) fn check_model(&self, model: &ModelIdentity) -> Result<(), CacheError> {
        match &self.model {
            Some(own) if !own.is(model) && !self.is_empty() => {
                Err(CacheError::OtherWeights { cache: own.label().to_string(), model: model.label().to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Records the tokens of new columns that follow `past` existing columns.
    pub(super) fn note_tokens(&mut self, past: usize, [batch, len]: [usize; 2], tokens: Option<&Tokens>) {
        self.ids.resize(batch, Vec::new());
        for (row, ids) in self.ids.iter_mut().enumerate() {
            ids.resize(past, UNKNOWN);
            match tokens {
                Some(tokens) => ids.extend_from_slice(tokens.row(row)),
                None => ids.resize(past + len, UNKNOWN),
            }
        }
    }

    /// Tokens by column, `None` if unknown. Used in files.
    pub(super) fn token_columns(&self) -> Vec<Vec<Option<u32>>> {
        let known = |id: &u32| Some(*id).filter(|id| *id != UNKNOWN);
        self.ids.iter().map(|row| row.iter().map(known).collect()).collect()
    }

    pub(super) fn set_token_columns(&mut self, columns: &[Vec<Option<u32>>], len: usize) {
        let known = |row: &Vec<Option<u32>>| row.iter().take(len).map(|id| id.unwrap_or(UNKNOWN)).collect();
        self.ids = columns.iter().map(known).collect();
    }

    /// Keeps the tokens of the first `len` columns.
    pub(super) fn truncate_tokens(&mut self, len: usize) {
        self.ids.iter_mut().for_each(|row| row.truncate(len));
    }

    /// Records the text lengths that the keys were rotated for.
    pub(super) fn note_lengths(&mut self) {
        let lengths = self.lengths();
        self.rotated_for.resize(lengths.len(), 0);
        self.rotated_for.iter_mut().zip(lengths).for_each(|(longest, len)| *longest = len.max(*longest));
    }

    /// For each row, the length of the longest text that keys were rotated for; empty if the rotation does not depend
    /// on the length.
    pub(crate) fn rotated_for(&self) -> &[usize] {
        &self.rotated_for
    }

    /// Selects the tokens of the given rows.
    pub(super) fn choose_tokens(&mut self, rows: &[usize]) {
        if !self.rotated_for.is_empty() {
            self.rotated_for = rows.iter().map(|row| self.rotated_for.get(*row).copied().unwrap_or(0)).collect();
        }
        self.ids = rows.iter().map(|row| self.ids.get(*row).cloned().unwrap_or_default()).collect();
    }

    /// Replaces the tokens of rows, starting at row `slot`, with another cache's tokens. This cache's rows are cut to
    /// `kept` columns and shifted right by `own` columns; the other cache's rows are shifted right by `new` columns.
    pub(super) fn insert_tokens(&mut self, other: &Self, slot: usize, kept: usize, [own, new]: [usize; 2]) {
        self.ids.resize(self.batch(), Vec::new());
        let moved = |mut row: Vec<u32>, len: usize, by: usize| {
            row.resize(len, UNKNOWN);
            row.splice(0..0, std::iter::repeat_n(UNKNOWN, by));
            row
        };
        self.ids = std::mem::take(&mut self.ids).into_iter().map(|row| moved(row, kept, own)).collect();
        if !(self.rotated_for.is_empty() && other.rotated_for.is_empty()) {
            self.rotated_for.resize(self.batch(), 0);
        }
        for at in 0..other.batch() {
            if let Some(own) = self.rotated_for.get_mut(slot + at) {
                *own = other.rotated_for.get(at).copied().unwrap_or(0);
            }
            let row = other.ids.get(at).cloned().unwrap_or_default();
            self.ids[slot + at] = moved(row, other.len(), new);
        }
    }
}
