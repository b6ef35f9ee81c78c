//! Rows of a cache: forked, chosen, put in another's place.

use super::KeyValueCache;
use super::store::Store;
use crate::error::CacheError;

impl KeyValueCache {
    /// A cache of `n` rows for each row of this one, which go on from what this one holds. That
    /// is stored once and read where it lies, by this cache and by all forks; each adds to its
    /// own only. Forks can be forked: a tree of prompts.
    ///
    /// # Errors
    /// [`CacheError::Size`] if `n` is zero.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut trunk = model.prefill("king drum sun star")?;
    /// let mut branches = trunk.fork(2)?;
    /// let next = |word: &str| model.to_single_token(word).map(|token| vec![token]);
    /// let rows = vec![next("king")?, next("fox")?];
    /// model.forward(rows, ForwardOptions::new().kv_cache(&mut branches))?;
    /// assert_eq!((trunk.len(), branches.len()), (5, 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn fork(&mut self, n: usize) -> Result<Self, CacheError> {
        if n == 0 {
            return Err(CacheError::Size { field: "n", given: n });
        }
        self.entries.iter_mut().for_each(super::Entry::seal);
        let mut fork = self.clone();
        fork.set_frozen(false);
        let rows: Vec<usize> = (0..self.batch()).flat_map(|row| std::iter::repeat_n(row, n)).collect();
        fork.choose(&rows);
        Ok(fork)
    }

    /// Repeats each row `n` times.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea"])?;
    /// cache.repeat_rows(3)?;
    /// assert_eq!(cache.batch(), 6); // each row three times, one behind the other
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`], or [`CacheError::Size`] if `n` is zero.
    pub fn repeat_rows(&mut self, n: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        *self = self.fork(n)?;
        Ok(())
    }

    /// Keeps these rows, in this order, each as often as it is named.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea", "red owl"])?;
    /// let second = cache.to_data()?.layers[0].keys.clone().map(|keys| keys.shape()[0]);
    /// cache.select_rows(&[1, 1])?; // the second, twice
    /// assert_eq!((second, cache.batch()), (Some(3), 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`], [`CacheError::Slot`], or [`CacheError::Size`] if none is named.
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
        self.choose(rows);
        Ok(())
    }

    /// Puts the rows in another order, as beam search does: row `i` becomes what row `order[i]`
    /// was.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea"])?;
    /// cache.reorder_rows(&[1, 0])?;
    /// let swapped = model.prefill(["fox tea", "king drum"])?;
    /// let keys = |cache: &KeyValueCache| cache[0].keys().map(|keys| keys.sum_dim(1));
    /// let gap = keys(&cache).zip(keys(&swapped)).map(|(a, b)| (a - b).abs().max().into_scalar::<f32>());
    /// assert!(gap.is_some_and(|gap| gap < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`KeyValueCache::select_rows`]; [`CacheError::Batch`] if the order names more or fewer
    /// rows than there are.
    pub fn reorder_rows(&mut self, order: &[usize]) -> Result<(), CacheError> {
        if order.len() != self.batch() {
            return Err(CacheError::Batch { cache: self.batch(), run: order.len() });
        }
        self.select_rows(order)
    }

    fn choose(&mut self, rows: &[usize]) {
        self.entries.iter_mut().for_each(|entry| entry.select(rows));
        self.mask = rows.iter().map(|row| self.mask[*row].clone()).collect();
        self.shape.batch = rows.len();
    }

    /// Puts another cache's one row in the place of row `slot`, whatever its length: a finished
    /// row of a batch makes room for a new one.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut batch = model.prefill(["king drum sun", "fox tea owl"])?;
    /// let new = model.prefill("red")?; // shorter: its columns are padded
    /// batch.insert(&new, 1)?;
    /// assert_eq!(batch.lengths(), [4, 2]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`], [`CacheError::Slot`], [`CacheError::Unsupported`] for kinds that
    /// don't keep rows whole; whatever makes the caches differ; [`CacheError::Full`]. The cache is
    /// left as it was.
    pub fn insert(&mut self, other: &KeyValueCache, slot: usize) -> Result<(), CacheError> {
        self.check_insert(other, slot)?;
        let last_real = |row: &Vec<bool>| row.iter().rposition(|real| *real).map_or(0, |last| last + 1);
        let others = self.mask.iter().enumerate().filter(|(row, _)| *row != slot);
        let kept = others.map(|(_, row)| last_real(row)).max().unwrap_or(0);
        let columns = kept.max(other.len());
        if let Some(max_len) = self.max_len().filter(|max| columns > *max) {
            return Err(CacheError::Full { max_len, needed: columns });
        }
        self.truncate(kept)?;
        for (entry, new) in self.entries.iter_mut().zip(&other.entries) {
            entry.replace_row(slot, new, columns)?;
        }
        self.interventions.extend(other.interventions.iter().cloned());
        self.mask[slot] = other.mask[0].clone();
        self.mask.iter_mut().for_each(|row| row.resize(columns, false));
        Ok(())
    }

    fn check_insert(&self, other: &KeyValueCache, slot: usize) -> Result<(), CacheError> {
        let batch = self.batch();
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        if slot >= batch {
            return Err(CacheError::Slot { slot, batch });
        }
        if other.batch() != 1 {
            return Err(CacheError::Batch { cache: 1, run: other.batch() });
        }
        if other.n_layers() != self.n_layers() {
            return Err(CacheError::Layers { cache: self.n_layers(), model: other.n_layers() });
        }
        let heads = |cache: &KeyValueCache| [cache.shape.kv_heads, cache.shape.d_head];
        if heads(self) != heads(other) {
            return Err(CacheError::Model { layer: 0, cache: heads(self), model: heads(other) });
        }
        for (layer, (mine, theirs)) in self.entries.iter().zip(&other.entries).enumerate() {
            if !matches!(mine.store, Store::Whole { .. }) {
                return Err(CacheError::Unsupported { kind: self.kind.name(), operation: "insert" });
            }
            if theirs.first() > 0 {
                return Err(CacheError::Dropped { layer, first: theirs.first(), wanted: 0 });
            }
            if let (Some((held, place)), Some((dtype, device))) = (mine.form(), theirs.form()) {
                if held != dtype {
                    return Err(CacheError::DType { cache: format!("{held:?}"), run: format!("{dtype:?}") });
                }
                if place != device {
                    return Err(CacheError::Device { cache: format!("{place:?}"), run: format!("{device:?}") });
                }
            }
        }
        Ok(())
    }

    /// Forgets all but the first `len` real positions of one row: the columns stay, as padding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut batch = model.prefill(["king drum sun", "fox tea owl"])?;
    /// batch.truncate_row(0, 2)?;
    /// assert_eq!((batch.len(), batch.lengths()), (4, vec![2, 4]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`], [`CacheError::Slot`], [`CacheError::TooFew`], or
    /// [`CacheError::Dropped`] as for [`KeyValueCache::truncate`].
    pub fn truncate_row(&mut self, slot: usize, len: usize) -> Result<(), CacheError> {
        let batch = self.batch();
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        let Some(row) = self.mask.get(slot) else { return Err(CacheError::Slot { slot, batch }) };
        let held = row.iter().filter(|real| **real).count();
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
        for (layer, entry) in self.entries.iter().enumerate() {
            let wanted = self.len() - super::needed(std::slice::from_ref(&shorter), self.shape.windows[layer]);
            if entry.first() > wanted {
                return Err(CacheError::Dropped { layer, first: entry.first(), wanted });
            }
        }
        self.mask[slot] = shorter;
        Ok(())
    }
}
