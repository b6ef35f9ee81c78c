//! Row operations: fork, select, reorder, insert.

use super::state::StateShape;
use super::{Entry, KeyValueCache};
use crate::error::CacheError;

impl KeyValueCache {
    /// Creates a cache with `n` rows for each row of this one, all of which continue from that row. The existing
    /// contents are stored once and shared by this cache and all forks; new positions are stored per cache. Forks can
    /// be forked again, giving a tree of prompts.
    ///
    /// # Errors
    /// [`CacheError::Size`] if `n` is zero, or [`CacheError::Disk`] if a cache on disk can't be read or written.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prompt = model.prefill("king drum sun star")?;
    /// let mut branches = prompt.fork(2)?;
    /// let next = |word: &str| model.to_single_token(word).map(|token| vec![token]);
    /// let rows = vec![next("king")?, next("fox")?];
    /// model.forward_with(rows, ForwardOptions::new().kv_cache(&mut branches))?;
    /// assert_eq!((prompt.len(), branches.len()), (5, 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn fork(&mut self, n: usize) -> Result<Self, CacheError> {
        if n == 0 {
            return Err(CacheError::Size { field: "n", given: n });
        }
        self.entries.iter_mut().for_each(Entry::seal);
        let mut fork = self.clone();
        fork.set_frozen(false);
        let rows: Vec<usize> = (0..self.batch()).flat_map(|row| std::iter::repeat_n(row, n)).collect();
        fork.choose(&rows)?;
        Ok(fork)
    }

    /// Keeps the given rows, in the given order. A row may be repeated.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea", "red owl"])?;
    /// cache.select_rows(&[1, 1])?; // the second row, twice
    /// assert_eq!(cache.batch(), 2);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen, [`CacheError::Slot`] if it does not have one of the rows, or
    /// [`CacheError::Size`] if no row is given.
    pub fn select_rows(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        let batch = self.batch();
        if let Some(slot) = rows.iter().copied().find(|row| *row >= batch) {
            return Err(CacheError::Slot { slot, batch });
        }
        if rows.is_empty() {
            return Err(CacheError::Size { field: "rows", given: 0 });
        }
        self.choose(rows)
    }

    fn choose(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            entry.select(rows)?;
        }
        self.entries = entries;
        let given_mask = |row: &usize| self.given_mask.get(*row).cloned().unwrap_or_default();
        self.given_mask = rows.iter().map(given_mask).collect();
        self.choose_tokens(rows);
        self.hidden_before = rows.iter().map(|row| self.hidden_before.get(*row).copied().unwrap_or(0)).collect();
        self.shape.batch = rows.len();
        Ok(())
    }

    /// Replaces rows, starting at `slot`, with another cache's rows of any length, so that new rows can take the place
    /// of finished ones. The caches may be of different kinds.
    ///
    /// Rows are aligned at the first column or, if a window has dropped columns, at the last. In both cases shorter
    /// rows are padded, and positions count only unmasked tokens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut batch = model.prefill(["king drum sun", "fox tea owl"])?;
    /// let new = model.prefill("red")?; // shorter, so it is padded
    /// batch.insert(&new, 1)?;
    /// assert_eq!(batch.lengths(), [4, 2]);
    /// let two = model.prefill(["red", "king drum"])?; // several rows at once
    /// batch.insert(&two, 0)?;
    /// assert_eq!(batch.lengths(), [2, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if this cache is frozen, [`CacheError::Slot`] or [`CacheError::Slots`] if it has too few
    /// rows, [`CacheError::Full`] if the rows are longer than its limit, or an error that states how the caches differ.
    /// On error, the cache is unchanged.
    pub fn insert(&mut self, other: &KeyValueCache, slot: usize) -> Result<(), CacheError> {
        self.check_insert(other, slot)?;
        let taken = slot..slot + other.batch();
        let (mut mine, mut theirs) = (self.real_rows(), other.real_rows());
        let dropped = |cache: &KeyValueCache| cache.entries.iter().any(|entry| entry.holds() && entry.first() > 0);
        let at_the_end = dropped(self) || dropped(other);
        let last_real = |row: &Vec<bool>| row.iter().rposition(|real| *real).map_or(0, |last| last + 1);
        let others = mine.iter().enumerate().filter(|(row, _)| !taken.contains(row));
        let kept = match at_the_end {
            true => self.len(),
            false => others.map(|(_, row)| last_real(row)).max().unwrap_or(0),
        };
        let columns = kept.max(other.len());
        if let Some(max_len) = self.max_len().filter(|max| columns > *max) {
            return Err(CacheError::Full { max_len, needed: columns });
        }
        let shift = |len: usize| if at_the_end { 0 } else { columns - len };
        let shifts = [shift(kept), shift(other.len())];
        let mut entries = Vec::new();
        for (entry, new) in self.entries.iter().zip(&other.entries) {
            let mut shorter = entry.clone();
            shorter.truncate(kept);
            entries.push(shorter.with_rows(slot, new, columns, shifts)?);
        }
        let place = |row: &mut Vec<bool>, len: usize| {
            row.truncate(len);
            let before = if at_the_end { columns - len } else { 0 };
            row.splice(0..0, std::iter::repeat_n(false, before));
            row.resize(columns, false);
        };
        mine.iter_mut().for_each(|row| place(row, kept));
        theirs.iter_mut().for_each(|row| place(row, other.len()));
        let moved = |before: usize, len: usize| {
            let moved = if at_the_end { columns - len } else { 0 };
            if before > 0 { before + moved } else { 0 }
        };
        self.hidden_before = self.hidden_rows();
        self.hidden_before.iter_mut().for_each(|before| *before = moved(*before, kept).min(columns));
        for (at, row) in theirs.into_iter().enumerate() {
            mine[slot + at] = row;
            self.hidden_before[slot + at] = moved(other.hidden_before.get(at).copied().unwrap_or(0), other.len());
        }
        let moves = if at_the_end { [columns - kept, columns - other.len()] } else { [0, 0] };
        self.insert_tokens(other, slot, kept, moves);
        (self.entries, self.given_mask) = (entries, mine);
        self.note_parts(other.interventions.iter().cloned());
        self.noted_hooks
            .extend(other.noted_hooks.iter().filter(|id| !self.noted_hooks.contains(id)).copied().collect::<Vec<_>>());
        if self.model.is_none() {
            self.model.clone_from(&other.model);
        }
        Ok(())
    }

    fn check_insert(&self, other: &KeyValueCache, slot: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        self.check_slots(slot, other.batch())?;
        self.check_whole()?;
        other.check_whole()?;
        if other.n_layers() != self.n_layers() {
            return Err(CacheError::Layers { cache: other.n_layers(), model: self.n_layers() });
        }
        for (layer, (mine, theirs)) in self.entries.iter().zip(&other.entries).enumerate() {
            if mine.recurrent != theirs.recurrent {
                return Err(CacheError::OtherState {
                    layer,
                    cache: StateShape::described(theirs.recurrent),
                    model: StateShape::described(mine.recurrent),
                });
            }
            let different = |(cache, model): &([usize; 2], [usize; 2])| cache != model;
            if let Some((cache, model)) = theirs.heads().into_iter().zip(mine.heads()).find(different) {
                return Err(CacheError::Model { layer, cache, model });
            }
            // An entry that holds nothing can't lack columns.
            if !theirs.holds() {
                mine.check_like(theirs)?;
                continue;
            }
            if theirs.first() > 0 && (theirs.window() != mine.window() || theirs.first() > other.first_needed(layer)) {
                return Err(CacheError::Dropped { layer, first: theirs.first(), wanted: 0 });
            }
            // Only a layer that drops columns can accept rows with dropped columns.
            if theirs.first() > 0 && !mine.drops() {
                return Err(CacheError::Dropped { layer, first: theirs.first(), wanted: 0 });
            }
            mine.check_like(theirs)?;
        }
        match &other.model {
            Some(theirs) => self.check_model(theirs),
            None => Ok(()),
        }
    }

    /// Masks all but the first `len` unmasked positions of one row. The columns remain, as padding.
    ///
    /// # Errors
    /// [`CacheError::Slot`] if there is no such row, [`CacheError::TooFew`] if it has fewer than `len` unmasked
    /// positions, or [`CacheError::Frozen`], [`CacheError::Dropped`] and [`CacheError::State`] as in
    /// [`KeyValueCache::truncate`].
    pub(super) fn truncate_row(&mut self, slot: usize, len: usize) -> Result<(), CacheError> {
        let batch = self.batch();
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        if slot >= batch {
            return Err(CacheError::Slot { slot, batch });
        }
        let mut given_mask = self.real_rows();
        let row = &given_mask[slot];
        let held = row.iter().filter(|real| **real).count();
        if len < held {
            self.check_without_states("dropping positions")?;
        }
        if len > held {
            return Err(CacheError::TooFew { held, asked: len });
        }
        let mut left = len;
        let shorter: Vec<bool> = row
            .iter()
            .map(|real| {
                let kept = *real && left > 0;
                left -= usize::from(kept);
                kept
            })
            .collect();
        for (layer, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.holds()) {
            let needed = super::mask::needed(std::slice::from_ref(&shorter), self.len(), self.shape.windows[layer]);
            let wanted = self.len() - needed;
            if entry.first_of(slot) > wanted {
                return Err(CacheError::Dropped { layer, first: entry.first_of(slot), wanted });
            }
        }
        given_mask[slot] = shorter;
        self.given_mask = given_mask;
        Ok(())
    }
}
