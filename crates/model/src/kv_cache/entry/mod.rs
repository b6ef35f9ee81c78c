//! A layer's entry in a key-value cache.

mod append;
mod change;
mod check;

use std::fmt;

use burn::tensor::{DType, Device, Tensor};

use super::head_shard::{HeadShard, side_by_side};
use super::keys::{KeyBlock, Keys};
use super::kind::CacheKind;
use super::prefetch::Prefetch;
use super::shape::CacheShape;
use super::state::{RecurrentState, StateShape};
use crate::config::Window;
use crate::error::CacheError;

/// Keys and values of one layer, `[batch, position, kv_head, d_head]`.
///
/// Keys are stored as attention reads them, with rotary embeddings applied, as in Hugging Face. (TransformerLens stores
/// them before rotation and rotates all of them at every step.)
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
    /// One shard, or one per device that the heads are spread over.
    shards: Vec<HeadShard>,
    kind: CacheKind,
    window: Option<Window>,
    /// `[heads, width]` of keys and values.
    heads: [[usize; 2]; 2],
    /// Number of rows that the entry was created for.
    rows: usize,
    /// Current number of rows.
    pub(super) batch: usize,
    /// Number of columns seen, including dropped ones.
    pub(super) len: usize,
    /// First column that each row holds, if inserted rows have fewer columns than others.
    held_from: Vec<usize>,
    /// Storage element type, if set.
    dtype: Option<DType>,
    /// Required device of new tensors, if set.
    device: Option<Device>,
    /// Device that the contents came from.
    pub(super) came_from: Option<Device>,
    pub(super) frozen: bool,
    pending: Option<Pending>,
    /// Shape of the recurrent state, if the layer has one.
    pub(super) recurrent: Option<StateShape>,
    pub(super) state: Option<RecurrentState>,
    /// The state before the current run, kept until the run completes.
    pub(super) before_run: Option<Option<RecurrentState>>,
    prefetch: Prefetch,
}

/// Columns of a run that has not completed.
#[derive(Debug, Clone)]
struct Pending {
    /// Number of columns held before the run.
    held: usize,
    /// The new columns; `None` once they are written.
    new: Option<[Tensor<4>; 2]>,
    /// Number of columns that must stay readable after the run.
    keep: usize,
}

impl Entry {
    pub(super) fn made(shape: &CacheShape, layer: usize, kind: CacheKind) -> Self {
        let window = shape.windows[layer];
        Self {
            shards: vec![HeadShard::new(kind, window)],
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

    /// Sets the storage element type, the required device, or both. Limited storage is allocated once both are known.
    pub(super) fn fix(&mut self, dtype: Option<DType>, device: Option<&Device>) {
        self.dtype = dtype.or(self.dtype);
        self.device = device.cloned().or_else(|| self.device.take());
        if let (Some(dtype), Some(device), true) = (self.dtype, &self.device, self.has_keys()) {
            self.shards.iter_mut().for_each(|shard| shard.reserve(self.rows, self.heads, dtype, device));
        }
    }

    /// Spreads the heads over devices as evenly as possible.
    pub(super) fn spread_heads(&mut self, devices: &[Device]) {
        let share = |heads: usize, at: usize| heads * at / devices.len()..heads * (at + 1) / devices.len();
        let shard = |(at, device): (usize, &Device)| {
            let heads = self.heads.map(|[heads, _]| share(heads, at));
            HeadShard::on(self.kind, self.window, device, heads)
        };
        self.shards = devices.iter().enumerate().map(shard).collect();
        self.fix(None, None);
    }

    /// Sets the storage element type, the required device and the devices of heads of another entry.
    pub(super) fn place_like(&mut self, other: &Self) {
        let devices: Vec<Device> = other.shards.iter().filter_map(|shard| shard.fixed_device().cloned()).collect();
        if !devices.is_empty() {
            self.spread_heads(&devices);
        }
        self.fix(other.dtype, other.device.as_ref());
    }

    /// The storage element type, if set.
    pub(super) fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// Resets an empty entry to the number of rows it was created for.
    pub(super) fn refit(&mut self) {
        if self.len == 0 {
            (self.batch, self.came_from) = (self.rows, None);
            self.held_from.clear();
            self.state = None;
        }
    }

    /// Number of columns held. An entry with only a recurrent state counts as holding all columns seen.
    pub(super) fn held(&self) -> usize {
        if self.has_state() && !self.has_keys() { self.len } else { self.shards[0].held() }
    }

    /// Whether the entry stores keys and values.
    pub(super) fn has_keys(&self) -> bool {
        self.heads[0][0] > 0
    }

    /// The contents as blocks on the computing device.
    fn blocks(&self, device: &Device) -> Result<Vec<KeyBlock>, CacheError> {
        read(&self.shards, device)
    }

    /// The contents, concatenated into one tensor of keys and one of values.
    pub(super) fn joined(&self) -> Result<Option<(Tensor<4>, Tensor<4>)>, CacheError> {
        let there = self.held() > 0 && self.has_keys();
        let Some(device) = self.came_from.as_ref().filter(|_| there) else { return Ok(None) };
        let blocks = self.blocks(device)?;
        Ok((!blocks.is_empty()).then(|| Keys { blocks, dropped: 0 }.joined()))
    }

    /// Keys and values; tensors without positions if the entry is empty.
    fn both(&self) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        if let Some(both) = self.joined()? {
            return Ok(both);
        }
        let (dtype, device) = (self.dtype.unwrap_or(DType::F32), self.device.clone().unwrap_or_default());
        let empty = |[heads, width]: [usize; 2]| Tensor::zeros([self.batch, 0, heads, width], (&device, dtype));
        Ok((empty(self.heads[0]), empty(self.heads[1])))
    }

    /// Keys, `[batch, position, kv_head, d_head]`; without positions if the entry is empty.
    ///
    /// # Errors
    /// [`CacheError::Disk`] if they are on disk and can't be read.
    pub fn keys(&self) -> Result<Tensor<4>, CacheError> {
        self.both().map(|(keys, _)| keys)
    }

    /// Values, `[batch, position, kv_head, d_head]`; without positions if the entry is empty.
    ///
    /// # Errors
    /// Same as [`Entry::keys`].
    pub fn values(&self) -> Result<Tensor<4>, CacheError> {
        self.both().map(|(_, values)| values)
    }

    /// Number of positions seen, including those that a window has dropped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the entry has seen no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of rows.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// First position that is still held.
    pub fn first(&self) -> usize {
        self.len - self.held()
    }

    /// First column that a row holds.
    pub(super) fn first_of(&self, row: usize) -> usize {
        self.first().max(self.held_from.get(row).copied().unwrap_or(0))
    }

    /// First column that every row holds.
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

    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Whether the entry stores keys and values or a recurrent state. It stores nothing if the layer reuses another
    /// layer's keys.
    pub(super) fn holds(&self) -> bool {
        self.has_state() || self.has_keys()
    }

    /// `[heads, width]` of keys and values.
    pub(super) fn heads(&self) -> [[usize; 2]; 2] {
        self.heads
    }

    pub(super) fn window(&self) -> Option<Window> {
        self.window
    }

    /// Whether the entry drops positions that have left the window.
    pub(super) fn drops(&self) -> bool {
        self.shards[0].window().is_some()
    }

    /// Maximum number of positions, if limited.
    pub(super) fn max_len(&self) -> Option<usize> {
        self.kind.max_len().filter(|_| !self.drops())
    }

    pub(super) fn bytes(&self) -> usize {
        let state = self.state.as_ref().map_or(0, RecurrentState::bytes);
        state + self.shards.iter().map(HeadShard::bytes).sum::<usize>()
    }
}

/// Reads the contents of all shards, with their heads joined on one device.
fn read(shards: &[HeadShard], device: &Device) -> Result<Vec<KeyBlock>, CacheError> {
    if let [shard] = shards {
        return shard.read(device);
    }
    Ok(side_by_side(shards.iter().map(|shard| shard.read(device)).collect::<Result<_, _>>()?))
}

impl fmt::Debug for Entry {
    /// Shows sizes but no values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[kv_heads, d_head], [value_heads, d_value]] = self.heads;
        f.debug_struct("Entry")
            .field("kind", &self.kind.to_string())
            .field("keys", &[self.batch, self.held(), kv_heads, d_head])
            .field("values", &[self.batch, self.held(), value_heads, d_value])
            .field("len", &self.len)
            .field("frozen", &self.frozen)
            .finish_non_exhaustive()
    }
}
