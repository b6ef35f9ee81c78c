//! Keys and values of a subset of a layer's heads, on one device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::keys::{KeyBlock, Keys};
use super::kind::{CacheKind, Form, Offload};
use super::store::{Sealed, Shared, Store};
use crate::config::Window;
use crate::device::main_memory;
use crate::error::CacheError;

/// Where a shard's tensors are stored.
#[derive(Debug, Clone)]
enum ShardPlacement {
    /// The device that computed them.
    Given,
    /// Main memory.
    Main,
    /// A fixed device.
    On(Device),
}

/// Ranges of key heads and value heads.
type HeadRanges = [Range<usize>; 2];

/// Keys and values of a subset of a layer's heads. A layer has one shard, or one per device that its heads are spread
/// over.
#[derive(Debug, Clone)]
pub(super) struct HeadShard {
    /// Earlier columns, shared with caches forked from this one.
    shared: Vec<Shared>,
    store: Store,
    home: ShardPlacement,
    /// The heads in this shard; `None` for all.
    heads: Option<HeadRanges>,
}

impl HeadShard {
    /// A shard for all heads, stored as the kind specifies.
    pub(super) fn new(kind: CacheKind, window: Option<Window>) -> Self {
        let in_memory = kind.offload() == Some(Offload::Memory) && kind.quantization().is_none();
        let home = if in_memory { ShardPlacement::Main } else { ShardPlacement::Given };
        Self { shared: Vec::new(), store: Store::new(kind, window), home, heads: None }
    }

    /// A shard for these heads, on a fixed device.
    pub(super) fn on(kind: CacheKind, window: Option<Window>, device: &Device, heads: HeadRanges) -> Self {
        let home = ShardPlacement::On(device.clone());
        Self { shared: Vec::new(), store: Store::new(kind, window), home, heads: Some(heads) }
    }

    /// The fixed device, if the heads of a layer are spread over devices.
    pub(super) fn fixed_device(&self) -> Option<&Device> {
        match &self.home {
            ShardPlacement::On(device) => Some(device),
            _ => None,
        }
    }

    /// Whether a read copies from another device or a file, and can therefore be prefetched.
    pub(super) fn is_away(&self) -> bool {
        let on_disk = |shared: &Shared| matches!(shared.sealed, Sealed::Disk(_));
        !matches!(self.home, ShardPlacement::Given)
            || matches!(self.store, Store::Disk { .. })
            || self.shared.iter().any(on_disk)
    }

    /// Whether the shard has all heads, stored on the device that computed them.
    fn is_plain(&self) -> bool {
        matches!(self.home, ShardPlacement::Given) && self.heads.is_none()
    }

    /// Whether new columns are written before attention reads them.
    pub(super) fn writes_first(&self) -> bool {
        self.is_plain() && self.store.writes_first()
    }

    /// The window, if columns that have left it are dropped.
    pub(super) fn window(&self) -> Option<Window> {
        self.store.window()
    }

    /// Allocates storage for this number of rows, if the kind limits the length.
    pub(super) fn reserve(&mut self, rows: usize, [k, v]: [[usize; 2]; 2], dtype: DType, device: &Device) {
        let home = self.home_of(device);
        let of = |which: usize, [heads, width]: [usize; 2]| {
            let heads = self.heads.as_ref().map_or(heads, |ranges| ranges[which].len());
            [rows, heads, width]
        };
        let shapes = [of(0, k), of(1, v)];
        self.store.reserve(shapes, dtype, &home);
    }

    fn home_of(&self, given: &Device) -> Device {
        match &self.home {
            ShardPlacement::Given => given.clone(),
            ShardPlacement::Main => main_memory(given),
            ShardPlacement::On(device) => device.clone(),
        }
    }

    /// Number of sealed columns.
    fn sealed(&self) -> usize {
        self.shared.iter().map(|shared| shared.len).sum()
    }

    /// Number of columns held.
    pub(super) fn held(&self) -> usize {
        self.sealed() + self.store.len()
    }

    /// Element type and device of the contents.
    pub(super) fn form(&self) -> Option<Form> {
        self.shared.first().and_then(Shared::form).or_else(|| self.store.form())
    }

    pub(super) fn bytes(&self) -> usize {
        self.shared.iter().map(|shared| shared.bytes).sum::<usize>() + self.store.bytes()
    }

    /// Stages new columns for this shard's heads, which performs all fallible steps of appending them. After the
    /// columns are appended, the last `keep` columns must stay readable.
    pub(super) fn stage(&mut self, new: &[Tensor<4>; 2], keep: usize) -> Result<(), CacheError> {
        let home = self.home_of(&new[0].device());
        let own = [0, 1].map(|which| {
            let tensor = new[which].clone();
            let tensor = match &self.heads {
                Some(heads) => tensor.narrow(2, heads[which].start, heads[which].len()),
                None => tensor,
            };
            if tensor.device() == home { tensor } else { tensor.to_device(&home) }
        });
        self.store.stage(own, self.sealed(), keep)
    }

    /// Appends the staged columns, and drops all but the last `keep` columns if there is a window.
    pub(super) fn settle(&mut self, keep: usize) {
        self.store.settle(keep);
    }

    /// Discards staged columns at any stage, so that the shard holds `held` columns again.
    pub(super) fn abandon(&mut self, held: usize) {
        self.store.abandon(held.saturating_sub(self.sealed()));
    }

    /// Reads the contents, oldest first, to the computing device.
    pub(super) fn read(&self, device: &Device) -> Result<Vec<KeyBlock>, CacheError> {
        let mut blocks = Vec::new();
        for shared in &self.shared {
            blocks.extend(shared.block()?);
        }
        blocks.extend(self.store.pieces()?.into_iter().map(|[keys, values]| KeyBlock { keys, values, rows: None }));
        if self.is_plain() {
            return Ok(blocks);
        }
        let here = |tensor: Tensor<4>| if tensor.device() == *device { tensor } else { tensor.to_device(device) };
        let moved =
            blocks.into_iter().map(|block| KeyBlock { keys: here(block.keys), values: here(block.values), ..block });
        Ok(moved.collect())
    }

    /// Keeps the first `left` columns.
    pub(super) fn truncate(&mut self, mut left: usize) {
        for shared in &mut self.shared {
            shared.len = shared.len.min(left);
            left -= shared.len;
        }
        self.shared.retain(|shared| shared.len > 0);
        self.store.drop_last(self.store.len().saturating_sub(left));
    }

    /// Selects rows in the given order. A row may be repeated.
    pub(super) fn select(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        if self.store.len() > 0 {
            self.store.select(rows)?;
        }
        for shared in &mut self.shared {
            shared.rows = rows.iter().map(|row| shared.rows[*row]).collect();
        }
        Ok(())
    }

    /// Seals the contents, so that other caches can read them.
    pub(super) fn seal(&mut self, batch: usize) {
        let (len, bytes) = (self.store.len(), self.store.bytes());
        if let Some(sealed) = self.store.seal() {
            self.shared.push(Shared { sealed, len, rows: (0..batch).collect(), bytes });
        }
    }

    /// Drops all columns; the memory stays allocated.
    pub(super) fn clear(&mut self) {
        self.shared.clear();
        self.store.drop_last(self.store.len());
    }
}

/// Joins the heads of several shards that hold the same columns.
pub(super) fn side_by_side(shards: Vec<Vec<KeyBlock>>) -> Vec<KeyBlock> {
    let mut shards = shards.into_iter();
    let Some(first) = shards.next() else { return Vec::new() };
    let others: Vec<Vec<KeyBlock>> = shards.collect();
    if others.is_empty() {
        return first;
    }
    let beside = |(at, block): (usize, KeyBlock)| {
        let all = |of: fn(&KeyBlock) -> &Tensor<4>| {
            let heads = std::iter::once(&block).chain(others.iter().filter_map(|shard| shard.get(at)));
            Tensor::cat(heads.map(|block| of(block).clone()).collect(), 2)
        };
        KeyBlock { keys: all(|block| &block.keys), values: all(|block| &block.values), rows: block.rows.clone() }
    };
    first.into_iter().enumerate().map(beside).collect()
}

/// Maps the blocks of a one-row cache to every row of a batch.
pub(super) fn for_all_rows(mut blocks: Vec<KeyBlock>, batch: usize) -> Vec<KeyBlock> {
    for block in &mut blocks {
        let row = block.rows.as_ref().map_or(0, |rows| rows[0]);
        block.rows = Some(Arc::from(vec![row; batch]));
    }
    blocks
}

/// Casts blocks to another element type.
pub(super) fn cast(keys: Keys, dtype: DType) -> Keys {
    let of = |tensor: Tensor<4>| if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) };
    let block = |block: KeyBlock| KeyBlock { keys: of(block.keys), values: of(block.values), rows: block.rows };
    Keys { blocks: keys.blocks.into_iter().map(block).collect(), dropped: keys.dropped }
}
