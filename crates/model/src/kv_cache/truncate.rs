//! Dropping the newest positions.

use super::{Entry, KeyValueCache, mask};
use crate::error::CacheError;

impl KeyValueCache {
    /// Drops all positions starting at `len`. A `len` of 0 resets the cache but keeps its memory allocated, like
    /// torchtune's `reset`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.truncate(2)?;
    /// let sun = model.to_single_token("sun")?;
    /// let behind = model.forward_with([sun], ForwardOptions::new().kv_cache(&mut cache))?;
    /// let whole = model.forward("king sun")?.narrow(1, 2, 1);
    /// assert!((behind - whole).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen, [`CacheError::Dropped`] if positions that a window has dropped
    /// would become visible again, or [`CacheError::State`] for a layer with a recurrent state, unless everything is
    /// dropped.
    pub fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        let len = len.min(self.len());
        if len > 0 && len < self.len() {
            self.check_without_states("dropping positions")?;
        }
        let given_mask: Vec<_> = self.given_mask.iter().map(|row| row[..len.min(row.len())].to_vec()).collect();
        for (layer, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.holds()) {
            for (row, given_mask) in given_mask.iter().enumerate().take(self.batch()) {
                let needed = mask::needed(std::slice::from_ref(given_mask), len, self.shape.windows[layer]);
                let (first, wanted) = (entry.first_of(row), len - needed);
                if first > wanted && len > 0 {
                    return Err(CacheError::Dropped { layer, first, wanted });
                }
            }
        }
        self.given_mask = given_mask;
        self.hidden_before.iter_mut().for_each(|before| *before = (*before).min(len));
        self.entries.iter_mut().for_each(|entry| entry.truncate(len));
        self.truncate_tokens(len);
        if len == 0 {
            self.entries.iter_mut().for_each(Entry::refit);
            self.interventions.clear();
            self.noted_hooks.clear();
            (self.ids, self.rotated_for, self.model) = (Vec::new(), Vec::new(), None);
            (self.given_mask, self.hidden_before) = (vec![Vec::new(); self.shape.batch], vec![0; self.shape.batch]);
        }
        Ok(())
    }
}
