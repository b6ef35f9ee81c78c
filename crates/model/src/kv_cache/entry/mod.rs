//! A layer's entry in a key-value cache.

mod append;
mod change;
mod check;

use std::fmt;

use burn::tensor::{DType, Device, Tensor};

use super::keys::{KeyBlock, Keys};
use super::kind::CacheKind;
use super::lane::{Lane, side_by_side};
use super::prefetch::Prefetch;
use super::shape::CacheShape;
use super::state::{RecurrentState, StateShape};
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
    /// Rows it was made for.
    rows: usize,
    /// Rows it holds.
    pub(super) batch: usize,
    /// Columns seen, dropped ones included.
    pub(super) len: usize,
    /// The first column that each row holds, where rows that were inserted lack columns that others hold.
    held_from: Vec<usize>,
    /// Element type that everything is cast to, if one was asked for.
    dtype: Option<DType>,
    /// Device that everything has to come from, if one was asked for.
    device: Option<Device>,
    /// Device that what is held came from.
    pub(super) came_from: Option<Device>,
    pub(super) frozen: bool,
    pending: Option<Pending>,
    /// The sizes of its state, if it has one in place of keys and values.
    pub(super) recurrent: Option<StateShape>,
    pub(super) state: Option<RecurrentState>,
    /// The state before the run that is not done.
    pub(super) before_run: Option<Option<RecurrentState>>,
    prefetch: Prefetch,
}

/// What a run has brought, until it has succeeded.
#[derive(Debug, Clone)]
struct Pending {
    /// Columns held before the run.
    held: usize,
    /// The new columns; `None` once they are written.
    new: Option<[Tensor<4>; 2]>,
    /// Columns that have to stay readable once the run has succeeded.
    keep: usize,
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
        if layer >= layers {
            return Err(CacheError::Layer { layer, layers });
        }
        Ok(Self::made(shape, layer, kind))
    }

    pub(super) fn made(shape: &CacheShape, layer: usize, kind: CacheKind) -> Self {
        let window = shape.windows[layer];
        Self {
            lanes: vec![Lane::new(kind, window)],
            kind,
            window,
            heads: shape.heads(layer),
            rows: shape.batch,
            batch: shape.batch,
            len: 0,
            held_from: Vec::new(),
            dtype: None,
            device: None,
            came_from: None,
            frozen: false,
            pending: None,
            recurrent: shape.state(layer),
            state: None,
            before_run: None,
            prefetch: Prefetch::default(),
        }
    }

    /// Fixes the element type that everything is cast to, the device that everything comes from, or both; room that
    /// is limited is made once both are known.
    pub(super) fn fix(&mut self, dtype: Option<DType>, device: Option<&Device>) {
        self.dtype = dtype.or(self.dtype);
        self.device = device.cloned().or_else(|| self.device.take());
        if let (Some(dtype), Some(device), true) = (self.dtype, &self.device, self.heads[0][0] > 0) {
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

    /// Resets the number of rows of an empty entry to the number it was made for.
    pub(super) fn refit(&mut self) {
        if self.len == 0 {
            (self.batch, self.came_from) = (self.rows, None);
            self.held_from.clear();
            self.state = None;
        }
    }

    /// Columns held; a state stands for all that were seen.
    pub(super) fn held(&self) -> usize {
        if self.recurrent.is_some() { self.len } else { self.lanes[0].held() }
    }

    /// What is held, on the device that computes.
    fn blocks(&self, device: &Device) -> Result<Vec<KeyBlock>, CacheError> {
        read(&self.lanes, device)
    }

    /// Everything held, joined into one tensor each.
    pub(super) fn joined(&self) -> Result<Option<(Tensor<4>, Tensor<4>)>, CacheError> {
        let there = self.held() > 0 && !self.is_recurrent();
        let Some(device) = self.came_from.as_ref().filter(|_| there) else { return Ok(None) };
        let blocks = self.blocks(device)?;
        Ok((!blocks.is_empty()).then(|| Keys { blocks, dropped: 0 }.joined()))
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

    /// Whether it has seen no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rows it holds.
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

    /// Sets the first column that each row holds.
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

    /// Whether it holds what it has seen, or a state of that: entries of layers that read another's keys don't.
    pub(super) fn holds(&self) -> bool {
        self.is_recurrent() || self.heads[0][0] > 0
    }

    /// `[heads, width]` of its keys and of its values.
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
        let state = self.state.as_ref().map_or(0, RecurrentState::bytes);
        state + self.lanes.iter().map(Lane::bytes).sum::<usize>()
    }
}

/// What lanes hold, all heads side by side on one device.
fn read(lanes: &[Lane], device: &Device) -> Result<Vec<KeyBlock>, CacheError> {
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
