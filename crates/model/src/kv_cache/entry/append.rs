//! Appending positions: immediately, or staged until a run has succeeded.

use burn::tensor::Tensor;

use super::{Entry, Pending, read};
use crate::error::CacheError;
use crate::kv_cache::head_shard::{HeadShard, cast, for_all_rows};
use crate::kv_cache::keys::{KeyBlock, Keys};

impl Entry {
    /// Returns the entry's keys and values followed by the new ones, which are stored unless the entry is frozen. A
    /// frozen entry with one row is used as the prefix of every given row.
    ///
    /// # Shapes
    /// - input: `[batch, new, kv_head, d_head]`, where `new` may be zero
    /// - output: `[batch, past + new, kv_head, d_head]`, without positions dropped by a window
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let new = || Tensor::<4>::zeros([1, 1, 4, 16], &model.device());
    /// let (keys, _) = cache[0].append(new(), new())?;
    /// assert_eq!((keys.dims(), cache[0].len()), ([1, 6, 4, 16], 6));
    /// cache.freeze();
    /// let (keys, _) = cache[0].append(new(), new())?; // returned, but not stored
    /// assert_eq!((keys.dims(), cache[0].len()), ([1, 7, 4, 16], 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shape, number of rows, element type, or device does not match the entry ([`CacheError::Shape`],
    /// [`CacheError::Batch`], [`CacheError::DType`], [`CacheError::Device`]), if the entry is full
    /// ([`CacheError::Full`]), or if its file can't be written or read ([`CacheError::Disk`]). On error, the entry is
    /// unchanged.
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        let mut adding = Adding { before: self.len, entry: self, done: false };
        let all = adding.entry.add(keys, values)?;
        adding.done = true;
        Ok(all)
    }

    fn add(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        let new = self.stored(keys, values);
        let held = self.grow(new.clone())?;
        let [keys, values] = new;
        let all = if held.blocks.is_empty() { (keys, values) } else { held.joined() };
        let keep = self.shards[0].window().map_or(self.len, |window| self.len - window.oldest(self.len));
        self.prepare(keep)?;
        self.commit();
        Ok(all)
    }

    /// Replaces the contents with these keys and values.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let (keys, values) = (cache[0].keys()?, cache[0].values()?);
    /// cache[0].set(keys.zeros_like(), values)?; // zeroes the keys
    /// assert_eq!(cache[0].keys()?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Entry::append`], and [`CacheError::Frozen`] if the entry is frozen. On error, the entry is unchanged.
    pub fn set(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        let mut empty = self.clone();
        empty.clear();
        empty.append(keys, values)?;
        *self = empty;
        Ok(())
    }

    /// Casts keys and values to the storage element type.
    pub(super) fn stored(&self, keys: Tensor<4>, values: Tensor<4>) -> [Tensor<4>; 2] {
        let cast = |tensor: Tensor<4>| match self.dtype {
            Some(dtype) if dtype != tensor.dtype() => tensor.cast(dtype),
            _ => tensor,
        };
        [cast(keys), cast(values)]
    }

    /// Returns the keys and values that attention reads: the stored ones followed by the new ones, in the new ones'
    /// element type. Unless the entry is frozen, the new ones are stored: immediately if that can be rolled back,
    /// otherwise by [`Entry::prepare`] and [`Entry::commit`].
    pub(crate) fn extend(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<Keys, CacheError> {
        let dtype = keys.dtype();
        let new = self.stored(keys, values);
        let keys = self.grow(new)?;
        Ok(if self.dtype.is_some_and(|stored| stored != dtype) { cast(keys, dtype) } else { keys })
    }

    /// Advances the length of an entry that stores nothing because its layer reuses another layer's keys.
    pub(in crate::kv_cache) fn pass_over(&mut self, [batch, count]: [usize; 2]) -> Result<(), CacheError> {
        self.check_rows(batch)?;
        if self.frozen || count == 0 {
            return Ok(());
        }
        self.check_room(count)?;
        if self.len == 0 {
            self.batch = batch;
        }
        self.len += count;
        Ok(())
    }

    /// Like [`Entry::extend`], but takes and returns keys and values in the storage element type.
    fn grow(&mut self, new: [Tensor<4>; 2]) -> Result<Keys, CacheError> {
        let [batch, count, ..] = new[0].dims();
        for ((what, given), [heads, width]) in ["keys", "values"].into_iter().zip(&new).zip(self.heads) {
            let (expected, given) = ([batch, count, heads, width], given.dims());
            if given != expected {
                return Err(CacheError::Shape { what, expected, given });
            }
        }
        self.check_rows(batch)?;
        let device = new[0].device();
        self.check_form(new[0].dtype(), &device)?;
        let keep = !self.frozen;
        if keep {
            self.check_room(count)?;
        }
        let dropped = self.len - self.held();
        let one_for_all = self.held() > 0 && batch != self.batch;
        if keep && count > 0 && self.len == 0 {
            self.batch = batch;
        }
        // Also applies if a window has dropped everything seen so far.
        if keep && count > 0 && self.held() == 0 {
            self.came_from = Some(device.clone());
        }
        if keep && count > 0 && self.writes_first() {
            self.pending = Some(Pending { held: self.held(), new: None, keep: 0 });
            self.stage(&new, 0)?;
            self.len += count;
            return Ok(Keys { blocks: self.blocks(&device)?, dropped });
        }
        let mut blocks = match self.prefetch.take() {
            Some(blocks) => blocks,
            None => self.blocks(&device)?,
        };
        if one_for_all {
            blocks = for_all_rows(blocks, batch);
        }
        if count > 0 {
            let [keys, values] = new.clone();
            blocks.push(KeyBlock { keys, values, rows: None });
        }
        if keep && count > 0 {
            self.len += count;
            self.pending = Some(Pending { held: self.held(), new: Some(new), keep: 0 });
        }
        Ok(Keys { blocks, dropped })
    }

    fn writes_first(&self) -> bool {
        matches!(&self.shards[..], [shard] if shard.writes_first())
    }

    /// Stages new columns in every shard, which performs all fallible steps of appending them. The existing contents
    /// remain readable; [`Entry::settle`] or [`HeadShard::abandon`] must follow.
    pub(super) fn stage(&mut self, new: &[Tensor<4>; 2], keep: usize) -> Result<(), CacheError> {
        self.prefetch.discard();
        self.shards.iter_mut().try_for_each(|shard| shard.stage(new, keep))
    }

    /// Appends the staged columns, and drops all but the last `keep` columns if there is a window.
    pub(super) fn settle(&mut self, keep: usize) {
        self.shards.iter_mut().for_each(|shard| shard.settle(keep));
    }

    /// Starts prefetching the entry if it is offloaded.
    pub(in crate::kv_cache) fn start_prefetch(&mut self) {
        if !self.has_keys()
            || self.prefetch.is_begun()
            || self.held() == 0
            || !self.shards.iter().any(HeadShard::is_away)
        {
            return;
        }
        let Some(device) = self.came_from.clone() else { return };
        let shards = self.shards.clone();
        self.prefetch.begin(move || read(&shards, &device));
    }

    /// Performs all fallible steps of storing a run's columns. The last `keep` columns must stay readable.
    /// [`Entry::commit`] or [`Entry::roll_back`] must follow.
    pub(in crate::kv_cache) fn prepare(&mut self, keep: usize) -> Result<(), CacheError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        pending.keep = keep;
        match pending.new.take() {
            Some(new) => self.stage(&new, keep),
            None => Ok(()),
        }
    }

    /// Stores a run's columns after every layer is prepared. Can't fail, so either all layers of a cache advance or
    /// none does.
    pub(in crate::kv_cache) fn commit(&mut self) {
        self.before_run = None;
        if let Some(pending) = self.pending.take() {
            self.settle(pending.keep);
        }
    }

    /// Rolls back everything that a run has added after the first `len` columns, at any stage.
    pub(in crate::kv_cache) fn roll_back(&mut self, len: usize) {
        self.prefetch.discard();
        if let Some(before) = self.before_run.take() {
            self.state = before;
        }
        if let Some(pending) = self.pending.take() {
            self.shards.iter_mut().for_each(|shard| shard.abandon(pending.held));
        }
        self.len = self.len.min(len);
        self.refit();
    }
}

/// Rolls an entry back if a manual append does not complete, including after a panic.
struct Adding<'e> {
    entry: &'e mut Entry,
    before: usize,
    done: bool,
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.entry.roll_back(self.before);
        }
    }
}
