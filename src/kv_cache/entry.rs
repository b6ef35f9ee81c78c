//! A layer's entry in a key-value cache.

use std::fmt;

use burn::tensor::{DType, Device, Tensor};

use super::ahead::Ahead;
use super::keys::{Keys, Part};
use super::kind::CacheKind;
use super::lane::{Lane, cast, for_all_rows, side_by_side};
use super::shape::CacheShape;
use crate::config::{TransformerConfig, Window};
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
/// assert_eq!(entry.keys()?.dims(), [1, 5, 4, 16]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone)]
pub struct Entry {
    /// One, or one for each device that the heads are spread over.
    lanes: Vec<Lane>,
    kind: CacheKind,
    window: Option<Window>,
    /// `[head, width]` of keys and of values.
    heads: [[usize; 2]; 2],
    /// Rows it is set up for.
    rows: usize,
    /// Rows it has.
    batch: usize,
    /// Columns seen, dropped ones included.
    len: usize,
    /// The first column that each row holds, where rows that were inserted lack columns that others hold.
    held_from: Vec<usize>,
    /// Element type that everything is cast to, if one was asked for.
    dtype: Option<DType>,
    /// Device that everything has to come from, if one was asked for.
    device: Option<Device>,
    /// Device that what is held came from.
    came_from: Option<Device>,
    frozen: bool,
    /// Columns a run has brought, to be stored when it has succeeded.
    pending: Option<[Tensor<4>; 2]>,
    ahead: Ahead,
}

impl Entry {
    /// An empty, growing entry for `batch` rows of one layer of a model of this configuration.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// use hooklens::Entry;
    /// let entry = Entry::new(model.config(), 2)?;
    /// assert_eq!(entry.keys()?.dims(), [2, 0, 4, 16]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Size`].
    pub fn new(config: &TransformerConfig, batch: usize) -> Result<Self, CacheError> {
        Self::of_shape(&CacheShape::of(config, batch)?, 0, CacheKind::GROWING)
    }

    /// An empty entry for a layer of a cache of this shape and kind.
    ///
    /// ```
    /// use hooklens::{CacheKind, CacheShape, Entry};
    /// let entry = Entry::of_shape(&CacheShape::new(1, 2, 4, 16)?, 1, CacheKind::preallocated(8))?;
    /// assert!(entry.is_empty() && !entry.is_frozen());
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Layer`], [`CacheError::Size`] or [`CacheError::Unsupported`].
    pub fn of_shape(shape: &CacheShape, layer: usize, kind: CacheKind) -> Result<Self, CacheError> {
        kind.check()?;
        let layers = shape.windows.len();
        let window = *shape.windows.get(layer).ok_or(CacheError::Layer { layer, layers })?;
        Ok(Self::made(shape, window, kind))
    }

    pub(super) fn made(shape: &CacheShape, window: Option<Window>, kind: CacheKind) -> Self {
        Self {
            lanes: vec![Lane::new(kind, window)],
            kind,
            window,
            heads: shape.heads(),
            rows: shape.batch,
            batch: shape.batch,
            len: 0,
            held_from: Vec::new(),
            dtype: None,
            device: None,
            came_from: None,
            frozen: false,
            pending: None,
            ahead: Ahead::default(),
        }
    }

    /// Fixes the element type that everything is cast to, the device that everything comes from, or both; room that
    /// is limited is made once both are known.
    pub(super) fn fix(&mut self, dtype: Option<DType>, device: Option<&Device>) {
        self.dtype = dtype.or(self.dtype);
        self.device = device.cloned().or_else(|| self.device.take());
        if let (Some(dtype), Some(device)) = (self.dtype, &self.device) {
            self.lanes.iter_mut().for_each(|lane| lane.reserve(self.rows, self.heads, dtype, device));
        }
    }

    /// Spreads the heads over devices, as evenly as they can be.
    pub(super) fn spread_heads(&mut self, devices: &[Device]) {
        let share = |heads: usize, at: usize| heads * at / devices.len()..heads * (at + 1) / devices.len();
        let lane = |(at, device): (usize, &Device)| {
            let heads = self.heads.map(|[heads, _]| share(heads, at));
            Lane::on(self.kind, self.window, device, heads)
        };
        self.lanes = devices.iter().enumerate().map(lane).collect();
        self.fix(None, None);
    }

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
        let (len, batch) = (self.len, self.batch);
        let new = self.stored(keys, values);
        let held = self.grow(new.clone())?;
        let [keys, values] = new;
        let all = if held.parts.is_empty() { (keys, values) } else { held.joined() };
        let keep = self.lanes[0].window().map_or(self.len, |window| self.len - window.oldest(self.len));
        if let Err(error) = self.settle(keep) {
            (self.len, self.batch) = (len, batch);
            return Err(error);
        }
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
    fn stored(&self, keys: Tensor<4>, values: Tensor<4>) -> [Tensor<4>; 2] {
        let cast = |tensor: Tensor<4>| match self.dtype {
            Some(dtype) if dtype != tensor.dtype() => tensor.cast(dtype),
            _ => tensor,
        };
        [cast(keys), cast(values)]
    }

    /// What attention reads when these come behind what is held, in the element type given. Unless the entry is
    /// frozen they are kept: at once if they can be forgotten again, else by [`Entry::settle`].
    pub(crate) fn extend(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<Keys, CacheError> {
        let dtype = keys.dtype();
        let new = self.stored(keys, values);
        let keys = self.grow(new)?;
        Ok(if self.dtype.is_some_and(|stored| stored != dtype) { cast(keys, dtype) } else { keys })
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
        self.pending = None;
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
            self.push(&new, 0)?;
            self.len += count;
            return Ok(Keys { parts: self.parts(&device)?, dropped });
        }
        let mut parts = match self.ahead.take() {
            Some(parts) => parts,
            None => self.parts(&device)?,
        };
        if one_for_all {
            parts = for_all_rows(parts, batch);
        }
        if count > 0 {
            let [keys, values] = new.clone();
            parts.push(Part { keys, values, rows: None });
        }
        if keep && count > 0 {
            self.len += count;
            self.pending = Some(new);
        }
        Ok(Keys { parts, dropped })
    }

    fn writes_first(&self) -> bool {
        matches!(&self.lanes[..], [lane] if lane.writes_first())
    }

    /// Adds columns to every lane, or to none.
    fn push(&mut self, new: &[Tensor<4>; 2], keep: usize) -> Result<(), CacheError> {
        self.ahead.forget();
        let count = new[0].dims()[1];
        for at in 0..self.lanes.len() {
            if let Err(error) = self.lanes[at].push(new, keep) {
                self.lanes[..at].iter_mut().for_each(|lane| lane.drop_last(count));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins to read what is held, if it is not where it is needed.
    pub(super) fn fetch_ahead(&mut self) {
        if self.ahead.is_begun() || self.held() == 0 || !self.lanes.iter().any(Lane::is_away) {
            return;
        }
        let Some(device) = self.came_from.clone() else { return };
        let lanes = self.lanes.clone();
        self.ahead.begin(move || read(&lanes, &device));
    }

    /// Commits what a run has added; `keep` columns must stay reachable.
    pub(super) fn settle(&mut self, keep: usize) -> Result<(), CacheError> {
        match self.pending.take() {
            Some(new) => self.push(&new, keep),
            None => Ok(()),
        }
    }

    /// Rolls back what a run has added after the first `len` columns.
    pub(super) fn unsettle(&mut self, len: usize) {
        self.ahead.forget();
        let new = self.len - len.min(self.len);
        if self.pending.take().is_none() {
            self.lanes.iter_mut().for_each(|lane| lane.drop_last(new));
        }
        self.len -= new;
        self.refit();
    }

    /// An empty entry has the rows it is set up for.
    pub(super) fn refit(&mut self) {
        if self.len == 0 {
            (self.batch, self.came_from) = (self.rows, None);
            self.held_from.clear();
        }
    }

    /// Columns held.
    pub(super) fn held(&self) -> usize {
        self.lanes[0].held()
    }

    /// What is held, on the device that computes.
    fn parts(&self, device: &Device) -> Result<Vec<Part>, CacheError> {
        read(&self.lanes, device)
    }

    /// Everything held, in one place.
    pub(super) fn joined(&self) -> Result<Option<(Tensor<4>, Tensor<4>)>, CacheError> {
        let Some(device) = self.came_from.as_ref().filter(|_| self.held() > 0) else { return Ok(None) };
        let parts = self.parts(device)?;
        Ok((!parts.is_empty()).then(|| Keys { parts, dropped: 0 }.joined()))
    }

    /// Keys and values held, of no positions if there are none.
    fn both(&self) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        if let Some(both) = self.joined()? {
            return Ok(both);
        }
        let (dtype, device) = (self.dtype.unwrap_or(DType::F32), self.device.clone().unwrap_or_default());
        let empty = |[heads, width]: [usize; 2]| Tensor::zeros([self.batch, 0, heads, width], (&device, dtype));
        Ok((empty(self.heads[0]), empty(self.heads[1])))
    }

    /// Keys held, `[batch, position, kv_head, d_head]`; of an empty entry those of no position.
    ///
    /// # Errors
    /// [`CacheError::Disk`] if they lie on disk and can't be read.
    pub fn keys(&self) -> Result<Tensor<4>, CacheError> {
        self.both().map(|(keys, _)| keys)
    }

    /// Values held, `[batch, position, kv_head, d_head]`; of an empty entry those of no position.
    ///
    /// # Errors
    /// As [`Entry::keys`].
    pub fn values(&self) -> Result<Tensor<4>, CacheError> {
        self.both().map(|(_, values)| values)
    }

    /// Positions seen, those a window has dropped included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position was seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rows it has.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The first position still held.
    pub fn first(&self) -> usize {
        self.len - self.held()
    }

    /// The first column that a row holds.
    pub(super) fn first_of(&self, row: usize) -> usize {
        self.first().max(self.held_from.get(row).copied().unwrap_or(0))
    }

    /// The first column that every row holds.
    pub(super) fn first_of_all(&self) -> usize {
        self.held_from.iter().copied().max().unwrap_or(0).max(self.first())
    }

    pub(super) fn held_from(&self) -> &[usize] {
        &self.held_from
    }

    /// Takes note of rows that hold fewer columns than others.
    pub(super) fn set_held_from(&mut self, columns: Vec<usize>) {
        self.held_from = columns;
    }

    /// From here on [`Entry::append`] keeps nothing. A run needs all layers of its cache alike.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache[1].freeze();
    /// assert_eq!((cache[0].is_frozen(), cache[1].is_frozen()), (false, true));
    /// let told = model.forward_with([51], ForwardOptions::new().kv_cache(&mut cache)).unwrap_err().to_string();
    /// assert_eq!(told, "layer 1 is frozen and the cache is not; a run needs all layers alike");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// From here on [`Entry::append`] keeps what it is given.
    pub fn unfreeze(&mut self) {
        self.frozen = false;
    }

    /// Whether [`Entry::append`] keeps nothing.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    pub(super) fn heads(&self) -> [[usize; 2]; 2] {
        self.heads
    }

    pub(super) fn window(&self) -> Option<Window> {
        self.window
    }

    /// Whether it drops what a window no longer sees.
    pub(super) fn drops(&self) -> bool {
        self.lanes[0].window().is_some()
    }

    /// Positions there is room for, if that is limited.
    pub(super) fn max_len(&self) -> Option<usize> {
        self.kind.max_len().filter(|_| !self.drops())
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes.iter().map(Lane::bytes).sum()
    }

    /// Drops columns from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.ahead.forget();
        let left = if len == 0 { 0 } else { len.saturating_sub(self.first()) };
        self.lanes.iter_mut().for_each(|lane| lane.truncate(left));
        self.len = self.len.min(len);
    }

    /// Drops all columns; the memory stays allocated.
    fn clear(&mut self) {
        self.ahead.forget();
        self.lanes.iter_mut().for_each(Lane::clear);
        (self.len, self.pending) = (0, None);
        self.held_from.clear();
        self.refit();
    }

    /// The rows given, in the order given, each as often as it is given.
    pub(super) fn select(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        self.ahead.forget();
        // A file that can't be read leaves all lanes as they were.
        let mut lanes = self.lanes.clone();
        for lane in &mut lanes {
            lane.select(rows)?;
        }
        (self.lanes, self.batch, self.rows) = (lanes, rows.len(), rows.len());
        if !self.held_from.is_empty() {
            self.held_from = rows.iter().map(|row| self.held_from[*row]).collect();
        }
        Ok(())
    }

    /// Makes what is held readable by other caches.
    pub(super) fn seal(&mut self) {
        self.ahead.forget();
        let batch = self.batch;
        self.lanes.iter_mut().for_each(|lane| lane.seal(batch));
    }

    /// Element type of what is held, and the device it came from.
    fn form(&self) -> Option<(DType, &Device)> {
        let (dtype, _) = self.lanes[0].form().filter(|_| self.held() > 0)?;
        Some((dtype, self.came_from.as_ref()?))
    }

    /// Whether so many rows can be appended: as many as there are; any number behind one row that is frozen; fewer
    /// than it is set up for while it is empty.
    fn check_rows(&self, batch: usize) -> Result<(), CacheError> {
        let fits = batch == self.batch || (self.frozen && self.batch == 1) || (self.len == 0 && batch <= self.rows);
        if fits { Ok(()) } else { Err(CacheError::Batch { cache: self.batch, run: batch }) }
    }

    fn check_form(&self, dtype: DType, device: &Device) -> Result<(), CacheError> {
        let form = self.form();
        if let Some((held, _)) = form.filter(|(held, _)| self.dtype.is_none() && *held != dtype) {
            return Err(CacheError::DType { cache: format!("{held:?}"), run: format!("{dtype:?}") });
        }
        let place = self.device.as_ref().or(form.map(|(_, place)| place));
        if let Some(place) = place.filter(|place| *place != device) {
            return Err(CacheError::Device { cache: format!("{place:?}"), run: format!("{device:?}") });
        }
        Ok(())
    }

    /// Whether what another entry holds could be held here.
    pub(super) fn check_like(&self, other: &Entry) -> Result<(), CacheError> {
        match other.form() {
            Some((dtype, device)) => self.check_form(dtype, device),
            None => Ok(()),
        }
    }

    /// Whether `count` more columns fit.
    fn check_room(&self, count: usize) -> Result<(), CacheError> {
        match self.max_len() {
            Some(max_len) if self.len + count > max_len => Err(CacheError::Full { max_len, needed: self.len + count }),
            _ => Ok(()),
        }
    }

    /// Whether a run of this model can append `count` columns to the entry.
    pub(super) fn check(
        &self,
        layer: usize,
        model: [usize; 2],
        len: usize,
        count: usize,
        (dtype, device): (DType, &Device),
    ) -> Result<(), CacheError> {
        if let Some(cache) = self.heads.into_iter().find(|cache| *cache != model) {
            return Err(CacheError::Model { layer, cache, model });
        }
        if self.len != len {
            return Err(CacheError::Length { layer, entry: self.len, mask: len });
        }
        if !self.frozen {
            self.check_room(count)?;
        }
        self.check_form(dtype, device)
    }

    /// Takes over keys and values, of which `first` columns were dropped, in the place of what is held.
    pub(super) fn fill(&mut self, keys: Tensor<4>, values: Tensor<4>, first: usize) -> Result<(), CacheError> {
        self.clear();
        let [batch, held, ..] = keys.dims();
        self.check_room(held)?;
        if held > 0 {
            (self.batch, self.came_from) = (batch, Some(keys.device()));
            let new = self.stored(keys, values);
            self.push(&new, held)?;
        }
        self.len = first + held;
        Ok(())
    }

    /// Takes note of `len` columns of so many rows, all of which were dropped.
    pub(super) fn fill_with_nothing(&mut self, len: usize, batch: usize) {
        self.clear();
        if len > 0 {
            (self.len, self.batch) = (len, batch);
        }
    }

    /// The entry with the rows from `row` on exchanged for those of another, both `columns` long: what is held of each
    /// ends `shift` columns before the end.
    pub(super) fn with_rows(
        &self,
        row: usize,
        other: &Entry,
        columns: usize,
        shift: [usize; 2],
    ) -> Result<Self, CacheError> {
        let (mine, theirs) = (self.joined()?, other.joined()?);
        let mut made = self.clone();
        // The oldest column that either holds.
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
            // Nothing of the rows that go stays behind.
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
        Ok(made)
    }
}

/// What lanes hold, all heads side by side on one device.
fn read(lanes: &[Lane], device: &Device) -> Result<Vec<Part>, CacheError> {
    if let [lane] = lanes {
        return lane.read(device);
    }
    Ok(side_by_side(lanes.iter().map(|lane| lane.read(device)).collect::<Result<_, _>>()?))
}

impl fmt::Debug for Entry {
    /// Sizes, never values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[kv_heads, d_head], [value_heads, d_value]] = self.heads;
        f.debug_struct("Entry")
            .field("kind", &self.kind.name())
            .field("keys", &[self.batch, self.held(), kv_heads, d_head])
            .field("values", &[self.batch, self.held(), value_heads, d_value])
            .field("len", &self.len)
            .field("frozen", &self.frozen)
            .finish_non_exhaustive()
    }
}
