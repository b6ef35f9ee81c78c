//! Keys and values of one layer.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::keys::{Keys, Part};
use super::kind::{CacheKind, Form};
use super::store::{Shared, Store, joined};
use crate::config::Window;
use crate::error::CacheError;

/// Keys and values of one layer, `[batch, position, kv_head, d_head]`.
///
/// Keys are those attention reads: rotated where positions are rotary, as Hugging Face keeps
/// them. (TransformerLens keeps them before rotation and rotates all of them at every step.)
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let cache = model.prefill("king drum sun star")?;
/// let entry = &cache[1]; // the second layer's
/// assert_eq!((entry.len(), entry.first()), (5, 0));
/// assert_eq!(entry.keys().map(|keys| keys.dims()), Some([1, 5, 4, 16]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Entry {
    /// Earlier columns, which caches forked from this one read too.
    pub(super) shared: Vec<Shared>,
    pub(super) store: Store,
    /// Rows.
    pub(super) batch: usize,
    /// Columns seen, dropped ones included.
    pub(super) len: usize,
    kv_heads: usize,
    d_head: usize,
    frozen: bool,
    /// Columns a run has brought, to be stored when it has succeeded.
    pending: Option<[Tensor<4>; 2]>,
}

impl Entry {
    pub(super) fn new(kind: CacheKind, window: Option<Window>, batch: usize, [kv_heads, d_head]: [usize; 2]) -> Self {
        let store = Store::new(kind, window);
        Self { shared: Vec::new(), store, batch, len: 0, kv_heads, d_head, frozen: false, pending: None }
    }

    /// Keys and values held, with those given behind them; kept unless the entry is frozen. One
    /// row of a frozen entry goes before each row given.
    ///
    /// # Shapes
    /// - given: `[batch, new, kv_head, d_head]`
    /// - back: `[batch, past + new, kv_head, d_head]`, without what a window has dropped
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut entry = model.prefill("king drum sun star")?[0].clone();
    /// let new = || Tensor::<4>::zeros([1, 1, 4, 16], &model.device());
    /// let (keys, _) = entry.append(new(), new())?;
    /// assert_eq!((keys.dims(), entry.len()), ([1, 6, 4, 16], 6));
    /// entry.freeze();
    /// let (keys, _) = entry.append(new(), new())?; // seen, not kept
    /// assert_eq!((keys.dims(), entry.len()), ([1, 7, 4, 16], 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Shape`], [`CacheError::Batch`], [`CacheError::DType`], [`CacheError::Device`]
    /// or [`CacheError::Full`]; the entry is left as it was.
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        let all = self.extend(keys, values)?.joined();
        let keep = match &self.store {
            Store::Ring { window, .. } => self.len - window.oldest(self.len),
            _ => self.len,
        };
        self.settle(keep)?;
        Ok(all)
    }

    /// What attention reads when these come behind what is held. Unless the entry is frozen they
    /// are kept: at once if they can be forgotten again, else by [`Entry::settle`].
    pub(crate) fn extend(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<Keys, CacheError> {
        let [batch, count, ..] = keys.dims();
        for given in [&keys, &values] {
            let expected = [batch, count, self.kv_heads, self.d_head];
            if given.dims() != expected {
                return Err(CacheError::Shape { expected, given: given.dims() });
            }
        }
        if batch != self.batch && !(self.frozen && self.batch == 1) {
            return Err(CacheError::Batch { cache: self.batch, run: batch });
        }
        self.check_form(keys.dtype(), &keys.device())?;
        let keep = !self.frozen;
        if keep {
            self.check_room(count)?;
        }
        self.pending = None;
        let dropped = self.len - self.held();
        if keep && self.store.writes_first() {
            self.store.push([keys, values], self.sealed(), 0)?;
            self.len += count;
            return Ok(Keys { parts: self.parts(batch), dropped });
        }
        let mut parts = self.parts(batch);
        parts.push(Part { keys: keys.clone(), values: values.clone(), rows: None });
        if keep {
            self.len += count;
            self.pending = Some([keys, values]);
        }
        Ok(Keys { parts, dropped })
    }

    /// Stores what a run has brought; `keep` columns must stay reachable.
    pub(super) fn settle(&mut self, keep: usize) -> Result<(), CacheError> {
        match self.pending.take() {
            Some(new) => self.store.push(new, self.sealed(), keep),
            None => Ok(()),
        }
    }

    /// Forgets what a run has brought behind the first `len` columns.
    pub(super) fn unsettle(&mut self, len: usize) {
        let new = self.len - len.min(self.len);
        if self.pending.take().is_none() {
            self.store.drop_last(new);
        }
        self.len -= new;
    }

    /// Columns that are sealed.
    fn sealed(&self) -> usize {
        self.shared.iter().map(|shared| shared.len).sum()
    }

    /// Columns held.
    pub(super) fn held(&self) -> usize {
        self.sealed() + self.store.len()
    }

    /// What is held, as `batch` rows read it.
    fn parts(&self, batch: usize) -> Vec<Part> {
        let one_for_all = batch != self.batch;
        let mut parts: Vec<Part> = self.shared.iter().filter_map(Shared::part).collect();
        if one_for_all {
            for part in &mut parts {
                let row = part.rows.as_ref().map_or(0, |rows| rows[0]);
                part.rows = Some(vec![row; batch].into());
            }
        }
        let rows: Option<Arc<[usize]>> = one_for_all.then(|| vec![0; batch].into());
        let own = self.store.pieces().into_iter().map(|[keys, values]| Part { keys, values, rows: rows.clone() });
        parts.extend(own);
        parts
    }

    /// Everything held, in one place.
    pub(super) fn joined(&self) -> Option<(Tensor<4>, Tensor<4>)> {
        let parts = self.parts(self.batch);
        (!parts.is_empty()).then(|| Keys { parts, dropped: 0 }.joined())
    }

    /// Keys held, `[batch, position, kv_head, d_head]`; `None` if there are none.
    pub fn keys(&self) -> Option<Tensor<4>> {
        self.joined().map(|(keys, _)| keys)
    }

    /// Values held, `[batch, position, kv_head, d_head]`; `None` if there are none.
    pub fn values(&self) -> Option<Tensor<4>> {
        self.joined().map(|(_, values)| values)
    }

    /// Positions seen, those a window has dropped included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position was seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first position still held.
    pub fn first(&self) -> usize {
        self.len - self.held()
    }

    /// From here on [`Entry::append`] keeps nothing.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// From here on [`Entry::append`] keeps what it is given.
    pub fn unfreeze(&mut self) {
        self.frozen = false;
    }

    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    pub(super) fn bytes(&self) -> usize {
        self.shared.iter().map(|shared| shared.bytes).sum::<usize>() + self.store.bytes()
    }

    /// Forgets columns from `len` on; [`Entry::reaches`] has said that it can be done.
    pub(super) fn truncate(&mut self, len: usize) {
        let first = self.first();
        let mut left = len.saturating_sub(first);
        for shared in &mut self.shared {
            shared.len = shared.len.min(left);
            left -= shared.len;
        }
        self.shared.retain(|shared| shared.len > 0);
        self.store.drop_last(self.store.len().saturating_sub(left));
        if len == 0 {
            self.shared.clear();
        }
        self.len = self.len.min(len);
    }

    /// The rows given, in the order given, each as often as it is given.
    pub(super) fn select(&mut self, rows: &[usize]) {
        for shared in &mut self.shared {
            shared.rows = rows.iter().map(|row| shared.rows[*row]).collect();
        }
        if self.store.len() > 0 {
            self.store.select(rows);
        }
        self.batch = rows.len();
    }

    /// Makes what is held readable by other caches.
    pub(super) fn seal(&mut self) {
        let (len, bytes) = (self.store.len(), self.store.bytes());
        if let Some(sealed) = self.store.seal() {
            self.shared.push(Shared { sealed, len, rows: (0..self.batch).collect(), bytes });
        }
    }

    /// Puts everything held in one place of its own. For what is whole.
    pub(super) fn gather(&mut self) -> Result<(), CacheError> {
        let Some((keys, values)) = self.joined().filter(|_| !self.shared.is_empty()) else { return Ok(()) };
        self.shared.clear();
        self.store.drop_last(self.store.len());
        self.store.push([keys, values], 0, usize::MAX)
    }

    /// Element type and device of what is held.
    pub(super) fn form(&self) -> Option<Form> {
        self.shared.first().and_then(Shared::form).or_else(|| self.store.form())
    }

    fn check_form(&self, dtype: DType, device: &Device) -> Result<(), CacheError> {
        let Some((held, place)) = self.form() else { return Ok(()) };
        if held != dtype {
            return Err(CacheError::DType { cache: format!("{held:?}"), run: format!("{dtype:?}") });
        }
        if place != *device {
            return Err(CacheError::Device { cache: format!("{place:?}"), run: format!("{device:?}") });
        }
        Ok(())
    }

    /// Whether `count` more columns fit.
    fn check_room(&self, count: usize) -> Result<(), CacheError> {
        let Store::Whole { max: Some(max), .. } = &self.store else { return Ok(()) };
        if self.len + count > *max {
            return Err(CacheError::Full { max_len: *max, needed: self.len + count });
        }
        Ok(())
    }

    /// Whether a run of this model can append `count` columns to the entry.
    pub(super) fn check(
        &self,
        layer: usize,
        [kv_heads, d_head]: [usize; 2],
        len: usize,
        count: usize,
        (dtype, device): (DType, &Device),
    ) -> Result<(), CacheError> {
        if [self.kv_heads, self.d_head] != [kv_heads, d_head] {
            return Err(CacheError::Model { layer, cache: [self.kv_heads, self.d_head], model: [kv_heads, d_head] });
        }
        if self.len != len {
            return Err(CacheError::Length { layer, entry: self.len, mask: len });
        }
        if !self.frozen {
            self.check_room(count)?;
        }
        self.check_form(dtype, device)
    }

    /// Takes over keys and values, of which `first` columns were dropped.
    pub(super) fn fill(&mut self, keys: Tensor<4>, values: Tensor<4>, first: usize) -> Result<(), CacheError> {
        let held = keys.dims()[1];
        self.check_room(held)?;
        if held > 0 {
            self.store.push([keys, values], 0, held)?;
        }
        self.len = first + held;
        Ok(())
    }

    /// Exchanges one row for one of another entry, `columns` long. For what is whole.
    pub(super) fn replace_row(&mut self, row: usize, by: &Entry, columns: usize) -> Result<(), CacheError> {
        self.gather()?;
        let Some((new_keys, new_values)) = by.joined() else { return Ok(()) };
        let held = joined(self.store.pieces());
        let changed = [new_keys, new_values].into_iter().enumerate().map(|(which, new)| {
            let [_, len, heads, d_head] = new.dims();
            let mut all = Tensor::zeros([self.batch, columns, heads, d_head], (&new.device(), new.dtype()));
            if let Some(held) = &held {
                let held = held[which].clone();
                let ranges = [0..self.batch, 0..held.dims()[1], 0..heads, 0..d_head];
                all = all.slice_assign(ranges, held);
            }
            all.slice_assign([row..row + 1, 0..len, 0..heads, 0..d_head], new)
        });
        let changed: Vec<Tensor<4>> = changed.collect();
        self.store.drop_last(self.store.len());
        let mut changed = changed.into_iter();
        if let (Some(keys), Some(values)) = (changed.next(), changed.next()) {
            self.store.push([keys, values], 0, columns)?;
        }
        self.len = columns;
        Ok(())
    }
}
