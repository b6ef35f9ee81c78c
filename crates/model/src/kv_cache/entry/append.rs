//! Adding positions: at once, or held back until a run has succeeded.

use burn::tensor::Tensor;

use super::{Entry, Pending, read};
use crate::error::CacheError;
use crate::kv_cache::keys::{KeyBlock, Keys};
use crate::kv_cache::lane::{Lane, cast, for_all_rows};

impl Entry {
    /// Keys and values held, with those given behind them; kept unless the entry is frozen. One
    /// row of a frozen entry goes before each row given.
    ///
    /// # Shapes
    /// - given: `[batch, new, kv_head, d_head]`, any number of new positions, none too
    /// - back: `[batch, past + new, kv_head, d_head]`, without what a window has dropped
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let new = || Tensor::<4>::zeros([1, 1, 4, 16], &model.device());
    /// let (keys, _) = cache[0].append(new(), new())?;
    /// assert_eq!((keys.dims(), cache[0].len()), ([1, 6, 4, 16], 6));
    /// cache[0].freeze();
    /// let (keys, _) = cache[0].append(new(), new())?; // seen, not kept
    /// assert_eq!((keys.dims(), cache[0].len()), ([1, 7, 4, 16], 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Shape`], [`CacheError::Batch`], [`CacheError::DType`], [`CacheError::Device`],
    /// [`CacheError::Full`] or [`CacheError::Disk`]; the entry is left as it was.
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
        let keep = self.lanes[0].window().map_or(self.len, |window| self.len - window.oldest(self.len));
        self.prepare(keep)?;
        self.commit();
        Ok(all)
    }

    /// Replaces everything held by these keys and values.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let (keys, values) = (cache[0].keys()?, cache[0].values()?);
    /// cache[0].set(keys.zeros_like(), values)?; // no key is like another
    /// assert_eq!(cache[0].keys()?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Entry::append`], and [`CacheError::Frozen`]; the entry is left as it was.
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

    /// Keys and values in the element type that is kept.
    pub(super) fn stored(&self, keys: Tensor<4>, values: Tensor<4>) -> [Tensor<4>; 2] {
        let cast = |tensor: Tensor<4>| match self.dtype {
            Some(dtype) if dtype != tensor.dtype() => tensor.cast(dtype),
            _ => tensor,
        };
        [cast(keys), cast(values)]
    }

    /// What attention reads when these come behind what is held, in the element type given. Unless the entry is
    /// frozen they are kept: written at once if that can be rolled back, else by [`Entry::prepare`] and
    /// [`Entry::commit`].
    pub(crate) fn extend(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<Keys, CacheError> {
        let dtype = keys.dtype();
        let new = self.stored(keys, values);
        let keys = self.grow(new)?;
        Ok(if self.dtype.is_some_and(|stored| stored != dtype) { cast(keys, dtype) } else { keys })
    }

    /// Counts positions of which a layer that reads another's keys holds nothing.
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

    /// [`Entry::extend`] in the element type that is kept.
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
        // Also where a window has dropped all that was seen.
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
        matches!(&self.lanes[..], [lane] if lane.writes_first())
    }

    /// Makes new columns ready in every lane: all that can fail of adding them. What is held can still be read as it
    /// was, and [`Entry::settle`] or [`Lane::abandon`] has to follow.
    pub(super) fn stage(&mut self, new: &[Tensor<4>; 2], keep: usize) -> Result<(), CacheError> {
        self.prefetch.discard();
        self.lanes.iter_mut().try_for_each(|lane| lane.stage(new, keep))
    }

    /// Adds what is staged, and drops all but the last `keep` columns where a window allows it.
    pub(super) fn settle(&mut self, keep: usize) {
        self.lanes.iter_mut().for_each(|lane| lane.settle(keep));
    }

    /// Starts prefetching the entry if it is offloaded.
    pub(in crate::kv_cache) fn start_prefetch(&mut self) {
        if self.is_recurrent() || self.prefetch.is_begun() || self.held() == 0 || !self.lanes.iter().any(Lane::is_away)
        {
            return;
        }
        let Some(device) = self.came_from.clone() else { return };
        let lanes = self.lanes.clone();
        self.prefetch.begin(move || read(&lanes, &device));
    }

    /// Does all that can fail of keeping what a run has brought; the last `keep` columns must stay readable.
    /// [`Entry::commit`] or [`Entry::roll_back`] has to follow.
    pub(in crate::kv_cache) fn prepare(&mut self, keep: usize) -> Result<(), CacheError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        pending.keep = keep;
        match pending.new.take() {
            Some(new) => self.stage(&new, keep),
            None => Ok(()),
        }
    }

    /// Keeps what a run has brought, once every layer is prepared. This can't fail: of a cache all layers advance, or none.
    pub(in crate::kv_cache) fn commit(&mut self) {
        self.before_run = None;
        if let Some(pending) = self.pending.take() {
            self.settle(pending.keep);
        }
    }

    /// Rolls back what a run has added after the first `len` columns, however far it has come.
    pub(in crate::kv_cache) fn roll_back(&mut self, len: usize) {
        self.prefetch.discard();
        if let Some(before) = self.before_run.take() {
            self.state = before;
        }
        if let Some(pending) = self.pending.take() {
            self.lanes.iter_mut().for_each(|lane| lane.abandon(pending.held));
        }
        self.len = self.len.min(len);
        self.refit();
    }
}

/// Rolls an entry back unless what is added to it by hand is done, also where a device panics.
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
