//! Storage of one layer's keys and values, depending on the kind of cache.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::buffer::Buffer;
use super::disk::Disk;
use super::fault;
use super::keys::{KeyBlock, select_rows};
use super::kind::{CacheKind, Form, Offload};
use super::quantized::Quantized;
use super::ring::Ring;
use crate::config::Window;
use crate::error::CacheError;

/// The part of a layer's storage that can still grow.
#[derive(Debug, Clone)]
pub(super) enum Store {
    /// Unmodified keys and values, with growing or limited capacity. The limit applies to all columns, including sealed
    /// ones.
    Whole { keys: Buffer, values: Buffer, max: Option<usize> },
    /// A ring buffer of the columns that are still inside a window.
    Ring { ring: Ring, window: Window },
    /// Quantized columns; with a window, only those still inside it.
    Quantized { quantized: Quantized, window: Option<Window> },
    /// Columns in a file; with a window, only those still inside it.
    Disk { disk: Disk, window: Option<Window> },
}

impl Store {
    pub(super) fn new(kind: CacheKind, window: Option<Window>) -> Self {
        let window = window.filter(|_| kind.is_sliding());
        if let Some(quantization) = kind.quantization() {
            let offloaded = kind.offload().is_some();
            return Store::Quantized { quantized: Quantized::new(quantization, offloaded), window };
        }
        match (kind.offload(), window) {
            (Some(Offload::Disk), window) => Store::Disk { disk: Disk::default(), window },
            (_, Some(window)) => {
                let room = kind.max_len().map_or(0, |max_len| window.width().min(max_len));
                Store::Ring { ring: Ring::with_room(room), window }
            }
            (_, None) => Store::Whole { keys: Buffer::default(), values: Buffer::default(), max: kind.max_len() },
        }
    }

    /// Allocates storage for keys and values, given `[rows, head, width]` for each, if the length is limited.
    pub(super) fn reserve(&mut self, [k, v]: [[usize; 3]; 2], dtype: DType, device: &Device) {
        if let Store::Whole { keys, values, max: Some(max) } = self {
            let room = |[rows, heads, width]: [usize; 3]| Buffer::with_room([rows, *max, heads, width], dtype, device);
            (*keys, *values) = (room(k), room(v));
        }
    }

    /// Number of columns held.
    pub(super) fn len(&self) -> usize {
        match self {
            Store::Whole { keys, .. } => keys.len(),
            Store::Ring { ring, .. } => ring.len(),
            Store::Quantized { quantized, .. } => quantized.len(),
            Store::Disk { disk, .. } => disk.len(),
        }
    }

    /// The window, if columns that have left it are dropped.
    pub(super) fn window(&self) -> Option<Window> {
        match self {
            Store::Whole { .. } => None,
            Store::Ring { window, .. } => Some(*window),
            Store::Quantized { window, .. } | Store::Disk { window, .. } => *window,
        }
    }

    /// Element type and device, if anything is held.
    pub(super) fn form(&self) -> Option<Form> {
        let of = |tensor: &Tensor<4>| (tensor.dtype(), tensor.device());
        if self.len() == 0 {
            return None;
        }
        match self {
            Store::Whole { keys, .. } => keys.tensor().map(of),
            Store::Ring { ring, .. } => ring.stored().map(|stored| of(&stored[0])),
            Store::Quantized { quantized, .. } => quantized.form(),
            Store::Disk { disk, .. } => disk.form(),
        }
    }

    /// Memory in bytes, including unused capacity.
    pub(super) fn bytes(&self) -> usize {
        let of = |tensor: &Tensor<4>| tensor.shape().num_elements() * tensor.dtype().size();
        match self {
            Store::Whole { keys, values, .. } => keys.bytes() + values.bytes(),
            Store::Ring { ring, .. } => ring.stored().iter().flat_map(|stored| stored.iter()).map(of).sum(),
            Store::Quantized { quantized, .. } => quantized.bytes(),
            Store::Disk { .. } => 0,
        }
    }

    /// Whether new columns are written before attention reads them, which requires that a write can be undone by
    /// dropping the newest columns.
    pub(super) fn writes_first(&self) -> bool {
        matches!(self, Store::Whole { .. })
    }

    /// Stages columns that follow `sealed` sealed ones, which performs all fallible steps of appending them. The
    /// existing contents remain readable. [`Store::settle`] or [`Store::abandon`] must follow. After the columns are
    /// appended, the last `keep` must stay readable.
    pub(super) fn stage(&mut self, [k, v]: [Tensor<4>; 2], sealed: usize, keep: usize) -> Result<(), CacheError> {
        fault::point()?;
        let windowed = self.window().is_some();
        if windowed && keep == 0 {
            return Ok(());
        }
        // Don't store what a window would drop immediately.
        let newest = |tensor: Tensor<4>| {
            let count = tensor.dims()[1];
            if windowed && count > keep { tensor.narrow(1, count - keep, keep) } else { tensor }
        };
        match self {
            Store::Whole { keys, values, max } => {
                let room = max.map(|max| max.saturating_sub(sealed));
                keys.append(k, room);
                fault::point()?;
                values.append(v, room);
            }
            Store::Ring { ring, window } => ring.stage([k, v], keep, window.width()),
            Store::Quantized { quantized, .. } => quantized.push([newest(k), newest(v)])?,
            Store::Disk { disk, .. } => disk.push([newest(k), newest(v)])?,
        }
        fault::point()
    }

    /// Appends the staged columns, and drops all but the last `keep` columns if there is a window.
    pub(super) fn settle(&mut self, keep: usize) {
        if keep == 0 && self.window().is_some() {
            return self.drop_last(self.len());
        }
        match self {
            Store::Ring { ring, .. } => ring.settle(keep),
            Store::Quantized { quantized, window: Some(_) } => quantized.keep_last(keep),
            Store::Disk { disk, window: Some(_) } => disk.keep_last(keep),
            Store::Whole { .. } | Store::Quantized { .. } | Store::Disk { .. } => {}
        }
    }

    /// Discards staged columns at any stage, so that the first `len` columns are held again.
    pub(super) fn abandon(&mut self, len: usize) {
        match self {
            Store::Whole { keys, values, .. } => {
                keys.truncate(len);
                values.truncate(len);
            }
            Store::Ring { ring, .. } => ring.abandon(),
            Store::Quantized { quantized, .. } => quantized.truncate(len),
            Store::Disk { disk, .. } => disk.abandon(len),
        }
    }

    /// The contents, oldest first.
    pub(super) fn pieces(&self) -> Result<Vec<[Tensor<4>; 2]>, CacheError> {
        Ok(match self {
            Store::Whole { keys, values, .. } => {
                keys.filled().zip(values.filled()).map(|(k, v)| [k, v]).into_iter().collect()
            }
            Store::Ring { ring, .. } => ring.pieces(),
            Store::Quantized { quantized, .. } => quantized.read().into_iter().collect(),
            Store::Disk { disk, .. } => disk.read()?.into_iter().collect(),
        })
    }

    /// Drops the newest `count` columns.
    pub(super) fn drop_last(&mut self, count: usize) {
        let len = self.len().saturating_sub(count);
        match self {
            Store::Whole { keys, values, .. } => {
                keys.truncate(len);
                values.truncate(len);
            }
            Store::Ring { ring, .. } => ring.drop_last(count),
            Store::Quantized { quantized, .. } => quantized.truncate(len),
            Store::Disk { disk, .. } => disk.truncate(len),
        }
    }

    /// Selects these rows, in this order.
    pub(super) fn select(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        match self {
            Store::Whole { keys, values, .. } => {
                (*keys, *values) = (keys.select(rows), values.select(rows));
            }
            Store::Ring { ring, .. } => {
                let Some([keys, values]) = joined(ring.pieces()) else { return Ok(()) };
                *ring = ring.filled_with(select_rows(keys, rows), select_rows(values, rows));
            }
            Store::Quantized { quantized, .. } => *quantized = quantized.select(rows),
            Store::Disk { disk, .. } => {
                let Some(both) = disk.read()? else { return Ok(()) };
                let mut chosen = Disk::default();
                chosen.push(both.map(|tensor| select_rows(tensor, rows)))?;
                *disk = chosen;
            }
        }
        Ok(())
    }

    /// Moves the contents out, so that they can be shared and are never modified again; `None` for stores that drop
    /// columns.
    pub(super) fn seal(&mut self) -> Option<Sealed> {
        if self.len() == 0 || self.window().is_some() {
            return None;
        }
        match self {
            Store::Whole { keys, values, .. } => {
                let (keys, values) = (std::mem::take(keys).filled(), std::mem::take(values).filled());
                keys.zip(values).map(|(keys, values)| Sealed::Whole(Arc::new([keys, values])))
            }
            Store::Ring { .. } => None,
            Store::Quantized { quantized, .. } => {
                let emptied = quantized.emptied();
                Some(Sealed::Quantized(Arc::new(std::mem::replace(quantized, emptied))))
            }
            Store::Disk { disk, .. } => Some(Sealed::Disk(Arc::new(std::mem::take(disk)))),
        }
    }
}

/// Concatenates pieces.
pub(super) fn joined(pieces: Vec<[Tensor<4>; 2]>) -> Option<[Tensor<4>; 2]> {
    if pieces.len() <= 1 {
        return pieces.into_iter().next();
    }
    Some([0, 1].map(|which| Tensor::cat(pieces.iter().map(|piece| piece[which].clone()).collect(), 1)))
}

/// Immutable columns that other caches may also read.
#[derive(Debug, Clone)]
pub(super) enum Sealed {
    Whole(Arc<[Tensor<4>; 2]>),
    Quantized(Arc<Quantized>),
    Disk(Arc<Disk>),
}

/// A cache's view of sealed columns.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) sealed: Sealed,
    /// Number of leading columns in this view.
    pub(super) len: usize,
    /// For each row of the cache, the sealed row that it reads.
    pub(super) rows: Arc<[usize]>,
    /// Size in bytes, including unused capacity.
    pub(super) bytes: usize,
}

impl Shared {
    pub(super) fn form(&self) -> Option<Form> {
        match &self.sealed {
            Sealed::Whole(both) => Some((both[0].dtype(), both[0].device())),
            Sealed::Quantized(quantized) => quantized.form(),
            Sealed::Disk(disk) => disk.form(),
        }
    }

    /// The view as a block for attention.
    pub(super) fn block(&self) -> Result<Option<KeyBlock>, CacheError> {
        let both = match &self.sealed {
            Sealed::Whole(both) => Some((**both).clone()),
            Sealed::Quantized(quantized) => quantized.read(),
            Sealed::Disk(disk) => disk.read()?,
        };
        let Some([keys, values]) = both else { return Ok(None) };
        let [keys, values] = [keys, values].map(|tensor| tensor.narrow(1, 0, self.len));
        Ok(Some(KeyBlock { keys, values, rows: Some(self.rows.clone()) }))
    }
}
