//! Replacing an entry's contents: fewer positions, other rows, or new keys and values.

use burn::tensor::Tensor;

use super::Entry;
use crate::error::CacheError;
use crate::kv_cache::head_shard::HeadShard;
use crate::kv_cache::state::RecurrentState;

impl Entry {
    /// Drops all columns starting at `len`.
    pub(in crate::kv_cache) fn truncate(&mut self, len: usize) {
        self.prefetch.discard();
        let left = if len == 0 { 0 } else { len.saturating_sub(self.first()) };
        self.shards.iter_mut().for_each(|shard| shard.truncate(left));
        self.len = self.len.min(len);
    }

    /// Drops all columns; the memory stays allocated.
    pub(super) fn clear(&mut self) {
        self.prefetch.discard();
        self.shards.iter_mut().for_each(HeadShard::clear);
        (self.len, self.pending, self.state) = (0, None, None);
        self.held_from.clear();
        self.refit();
    }

    /// Selects rows in the given order. A row may be repeated.
    pub(in crate::kv_cache) fn select(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        self.prefetch.discard();
        // Work on copies, so that a file read error leaves all shards unchanged.
        let mut shards = self.shards.clone();
        for shard in &mut shards {
            shard.select(rows)?;
        }
        (self.shards, self.batch, self.rows) = (shards, rows.len(), rows.len());
        if !self.held_from.is_empty() {
            self.held_from = rows.iter().map(|row| self.held_from[*row]).collect();
        }
        self.state = self.state.take().map(|state| state.select(rows));
        Ok(())
    }

    /// Seals the contents, so that other caches can read them.
    pub(in crate::kv_cache) fn seal(&mut self) {
        self.prefetch.discard();
        let batch = self.batch;
        self.shards.iter_mut().for_each(|shard| shard.seal(batch));
    }

    /// Replaces the contents with these keys and values. The `first` columns before them were dropped.
    pub(in crate::kv_cache) fn fill(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        first: usize,
    ) -> Result<(), CacheError> {
        self.clear();
        let [batch, held, ..] = keys.dims();
        self.check_room(held)?;
        if held > 0 {
            (self.batch, self.came_from) = (batch, Some(keys.device()));
            let new = self.stored(keys, values);
            self.stage(&new, held)?;
            self.settle(held);
        }
        self.len = first + held;
        Ok(())
    }

    /// Sets the recurrent state after `len` columns. Keys and values of the layer, if any, must be filled first.
    pub(in crate::kv_cache) fn set_state(&mut self, state: RecurrentState, len: usize) {
        if !self.has_keys() {
            self.clear();
            (self.len, self.batch, self.came_from) = (len, state.rows(), Some(state.memory.device()));
        }
        self.state = Some(state);
    }

    /// Marks the entry as having seen `len` columns of `batch` rows while holding none.
    pub(in crate::kv_cache) fn fill_with_nothing(&mut self, len: usize, batch: usize) {
        self.clear();
        if len > 0 {
            (self.len, self.batch) = (len, batch);
        }
    }

    /// Returns a copy in which another entry's rows replace the same number of rows, starting at `row`. All rows become
    /// `columns` long. This entry's contents end `shift[0]` columns before the end of the result, and the other entry's
    /// contents end `shift[1]` columns before it.
    pub(in crate::kv_cache) fn with_rows(
        &self,
        row: usize,
        other: &Entry,
        columns: usize,
        shift: [usize; 2],
    ) -> Result<Self, CacheError> {
        let mut made = self.clone();
        let state = if self.has_state() { self.state_with_rows(row, other) } else { None };
        if self.has_state() && !self.has_keys() {
            (made.state, made.len) = (state, columns);
            return Ok(made);
        }
        if !self.holds() {
            made.fill_with_nothing(columns, self.batch);
            made.held_from.clear();
            return Ok(made);
        }
        let (mine, theirs) = (self.joined()?, other.joined()?);
        let theirs = theirs.map(|(keys, values)| self.stored(keys, values).into());
        // Oldest column held by either entry.
        let first = |entry: &Entry, shift: usize| columns - shift - entry.held().min(columns - shift);
        let first = first(self, shift[0]).min(first(other, shift[1]));
        let whole = |which: usize| {
            let pick = |both: &Option<(Tensor<4>, Tensor<4>)>| {
                both.as_ref().map(|(keys, values)| if which == 0 { keys.clone() } else { values.clone() })
            };
            let (mine, theirs) = (pick(&mine), pick(&theirs));
            let like = mine.as_ref().or(theirs.as_ref())?;
            let ([heads, width], held) = (self.heads[which], columns - first);
            let form = (&like.device(), like.dtype());
            let blank = |rows: usize| Tensor::zeros([rows, held, heads, width], form);
            let placed = |all: Tensor<4>, tensor: Option<Tensor<4>>, row: usize, shift: usize| {
                let Some(tensor) = tensor else { return all };
                let ([rows, len, ..], end) = (tensor.dims(), held - shift);
                let kept = len.min(end);
                all.slice_assign(
                    [row..row + rows, end - kept..end, 0..heads, 0..width],
                    tensor.narrow(1, len - kept, kept),
                )
            };
            let all = placed(blank(self.batch), mine, 0, shift[0]);
            // Clear the replaced rows completely.
            let all = all.slice_assign([row..row + other.batch, 0..held, 0..heads, 0..width], blank(other.batch));
            Some(placed(all, theirs, row, shift[1]))
        };
        match (whole(0), whole(1)) {
            (Some(keys), Some(values)) => made.fill(keys, values, first)?,
            _ => made.fill_with_nothing(columns, self.batch),
        }
        let moved = |entry: &Entry, row: usize, shift: usize| entry.first_of(row) + (columns - shift - entry.len);
        let mut held_from: Vec<usize> = (0..self.batch).map(|row| moved(self, row, shift[0])).collect();
        (0..other.batch).for_each(|at| held_from[row + at] = moved(other, at, shift[1]));
        made.held_from = if held_from.iter().all(|first| *first == made.first()) { Vec::new() } else { held_from };
        made.state = state;
        Ok(made)
    }
}
