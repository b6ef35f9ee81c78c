//! Keys and values of some of a layer's heads, on one device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::keys::{KeyBlock, Keys};
use super::kind::{CacheKind, Form, Offload};
use super::store::{Sealed, Shared, Store};
use crate::config::Window;
use crate::device::main_memory;
use crate::error::CacheError;

/// Where a lane's tensors are stored.
#[derive(Debug, Clone)]
enum Home {
    /// On the device they were computed on.
    Given,
    /// In main memory.
    Main,
    /// On a device of their own.
    On(Device),
}

/// Some of a layer's heads: those of the keys and those of the values.
type HeadRanges = [Range<usize>; 2];

/// Keys and values of some of a layer's heads. A layer has one lane, or one for each device that its heads are
/// spread over.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    /// Earlier columns, which caches forked from this one read too.
    shared: Vec<Shared>,
    store: Store,
    home: Home,
    /// `None` for all heads.
    heads: Option<HeadRanges>,
}

impl Lane {
    /// All heads, where the kind says.
    pub(super) fn new(kind: CacheKind, window: Option<Window>) -> Self {
        let in_memory = kind.offload() == Some(Offload::Memory) && kind.quantization().is_none();
        let home = if in_memory { Home::Main } else { Home::Given };
        Self { shared: Vec::new(), store: Store::new(kind, window), home, heads: None }
    }

    /// These heads, on a device of their own.
    pub(super) fn on(kind: CacheKind, window: Option<Window>, device: &Device, heads: HeadRanges) -> Self {
        let home = Home::On(device.clone());
        Self { shared: Vec::new(), store: Store::new(kind, window), home, heads: Some(heads) }
    }

    /// Whether reading copies it from another device or a file, which can be done ahead.
    pub(super) fn is_away(&self) -> bool {
        let on_disk = |shared: &Shared| matches!(shared.sealed, Sealed::Disk(_));
        !matches!(self.home, Home::Given) || matches!(self.store, Store::Disk { .. }) || self.shared.iter().any(on_disk)
    }

    /// Whether the lane has all heads, stored on the device they were computed on.
    fn is_plain(&self) -> bool {
        matches!(self.home, Home::Given) && self.heads.is_none()
    }

    /// Whether new columns are written before attention reads them.
    pub(super) fn writes_first(&self) -> bool {
        self.is_plain() && self.store.writes_first()
    }

    /// The window whose columns it keeps, if it drops the others.
    pub(super) fn window(&self) -> Option<Window> {
        self.store.window()
    }

    /// Makes the room that a limited kind will need for so many rows.
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
            Home::Given => given.clone(),
            Home::Main => main_memory(given),
            Home::On(device) => device.clone(),
        }
    }

    /// Columns that are sealed.
    fn sealed(&self) -> usize {
        self.shared.iter().map(|shared| shared.len).sum()
    }

    /// Columns held.
    pub(super) fn held(&self) -> usize {
        self.sealed() + self.store.len()
    }

    /// Element type and device of what is stored.
    pub(super) fn form(&self) -> Option<Form> {
        self.shared.first().and_then(Shared::form).or_else(|| self.store.form())
    }

    pub(super) fn bytes(&self) -> usize {
        self.shared.iter().map(|shared| shared.bytes).sum::<usize>() + self.store.bytes()
    }

    /// Makes columns of all heads ready to be added, of which the lane takes its own: all that can fail. Once they
    /// are added the last `keep` columns have to stay readable.
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

    /// Adds what is staged, and drops all but the last `keep` columns where a window allows it.
    pub(super) fn settle(&mut self, keep: usize) {
        self.store.settle(keep);
    }

    /// Discards what is staged, wherever staging has stopped: the lane holds `held` columns again.
    pub(super) fn abandon(&mut self, held: usize) {
        self.store.abandon(held.saturating_sub(self.sealed()));
    }

    /// What is held, oldest first, on the device that computes.
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

    /// Drops all but the first `left` columns held.
    pub(super) fn truncate(&mut self, mut left: usize) {
        for shared in &mut self.shared {
            shared.len = shared.len.min(left);
            left -= shared.len;
        }
        self.shared.retain(|shared| shared.len > 0);
        self.store.drop_last(self.store.len().saturating_sub(left));
    }

    /// The rows given, in the order given, each as often as it is given.
    pub(super) fn select(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        if self.store.len() > 0 {
            self.store.select(rows)?;
        }
        for shared in &mut self.shared {
            shared.rows = rows.iter().map(|row| shared.rows[*row]).collect();
        }
        Ok(())
    }

    /// Makes what is held readable by other caches.
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

/// Joins the heads of several lanes that hold the same columns.
pub(super) fn side_by_side(lanes: Vec<Vec<KeyBlock>>) -> Vec<KeyBlock> {
    let mut lanes = lanes.into_iter();
    let Some(first) = lanes.next() else { return Vec::new() };
    let others: Vec<Vec<KeyBlock>> = lanes.collect();
    if others.is_empty() {
        return first;
    }
    let beside = |(at, block): (usize, KeyBlock)| {
        let all = |of: fn(&KeyBlock) -> &Tensor<4>| {
            let heads = std::iter::once(&block).chain(others.iter().filter_map(|lane| lane.get(at)));
            Tensor::cat(heads.map(|block| of(block).clone()).collect(), 2)
        };
        KeyBlock { keys: all(|block| &block.keys), values: all(|block| &block.values), rows: block.rows.clone() }
    };
    first.into_iter().enumerate().map(beside).collect()
}

/// Blocks of a cache of one row, read by every row of a batch.
pub(super) fn for_all_rows(mut blocks: Vec<KeyBlock>, batch: usize) -> Vec<KeyBlock> {
    for block in &mut blocks {
        let row = block.rows.as_ref().map_or(0, |rows| rows[0]);
        block.rows = Some(Arc::from(vec![row; batch]));
    }
    blocks
}

/// Blocks in another element type.
pub(super) fn cast(keys: Keys, dtype: DType) -> Keys {
    let of = |tensor: Tensor<4>| if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) };
    let block = |block: KeyBlock| KeyBlock { keys: of(block.keys), values: of(block.values), rows: block.rows };
    Keys { blocks: keys.blocks.into_iter().map(block).collect(), dropped: keys.dropped }
}
