//! Where one layer's keys and values lie.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::buffer::Buffer;
use super::keys::{Part, select_rows};
use super::kind::{CacheKind, Form};
use super::quantized::Quantized;
use super::ring::Ring;
use crate::config::Window;
use crate::error::CacheError;

/// What may still grow.
#[derive(Debug, Clone)]
pub(super) enum Store {
    /// Keys and values whole, in room that grows or has a limit: one on all columns, those sealed
    /// before it included.
    Whole { keys: Buffer, values: Buffer, max: Option<usize> },
    /// What a window can still see.
    Ring { ring: Ring, window: Window },
    /// In few bits.
    Quantized(Quantized),
}

impl Store {
    pub(super) fn new(kind: CacheKind, window: Option<Window>) -> Self {
        let whole = |max| Store::Whole { keys: Buffer::default(), values: Buffer::default(), max };
        match (kind, window) {
            (CacheKind::Preallocated { max_len }, _) => whole(Some(max_len)),
            (CacheKind::Sliding, Some(window)) => Store::Ring { ring: Ring::default(), window },
            (CacheKind::Quantized { bits, group }, _) => Store::Quantized(Quantized::new(bits, group)),
            _ => whole(None),
        }
    }

    /// Columns held.
    pub(super) fn len(&self) -> usize {
        match self {
            Store::Whole { keys, .. } => keys.len(),
            Store::Ring { ring, .. } => ring.len(),
            Store::Quantized(quantized) => quantized.len(),
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
            Store::Quantized(quantized) => quantized.form().map(|(_, dtype, device)| (*dtype, device.clone())),
        }
    }

    /// Bytes, room for growth included.
    pub(super) fn bytes(&self) -> usize {
        let of = |tensor: &Tensor<4>| tensor.shape().num_elements() * tensor.dtype().size();
        match self {
            Store::Whole { keys, values, .. } => [keys, values].into_iter().filter_map(Buffer::tensor).map(of).sum(),
            Store::Ring { ring, .. } => ring.stored().iter().flat_map(|stored| stored.iter()).map(of).sum(),
            Store::Quantized(quantized) => quantized.bytes(),
        }
    }

    /// Whether new columns are written before attention reads them: what is written later can't
    /// be undone by forgetting the newest.
    pub(super) fn writes_first(&self) -> bool {
        matches!(self, Store::Whole { .. })
    }

    /// Adds columns behind `sealed` others, of which `keep` have to stay reachable.
    pub(super) fn push(&mut self, [k, v]: [Tensor<4>; 2], sealed: usize, keep: usize) -> Result<(), CacheError> {
        match self {
            Store::Whole { keys, values, max } => {
                let room = max.map(|max| max.saturating_sub(sealed));
                keys.append(k, room);
                values.append(v, room);
            }
            Store::Ring { ring, window } => ring.push([k, v], keep, window.width()),
            Store::Quantized(quantized) => quantized.push([k, v])?,
        }
        Ok(())
    }

    /// What is held, oldest first.
    pub(super) fn pieces(&self) -> Vec<[Tensor<4>; 2]> {
        match self {
            Store::Whole { keys, values, .. } => {
                keys.filled().zip(values.filled()).map(|(k, v)| [k, v]).into_iter().collect()
            }
            Store::Ring { ring, .. } => ring.pieces(),
            Store::Quantized(quantized) => quantized.read().into_iter().collect(),
        }
    }

    /// Forgets the newest columns.
    pub(super) fn drop_last(&mut self, count: usize) {
        let len = self.len().saturating_sub(count);
        match self {
            Store::Whole { keys, values, .. } => {
                keys.truncate(len);
                values.truncate(len);
            }
            Store::Ring { ring, .. } => ring.drop_last(count),
            Store::Quantized(quantized) => quantized.truncate(len),
        }
    }

    /// Exchanges the rows for these of them.
    pub(super) fn select(&mut self, rows: &[usize]) {
        match self {
            Store::Whole { keys, values, .. } => {
                for buffer in [keys, values] {
                    *buffer = buffer.filled().map_or(Buffer::default(), |t| Buffer::filled_with(select_rows(t, rows)));
                }
            }
            Store::Ring { ring, .. } => {
                let Some([keys, values]) = joined(ring.pieces()) else { return };
                *ring = Ring::filled_with(select_rows(keys, rows), select_rows(values, rows));
            }
            Store::Quantized(quantized) => *quantized = quantized.select(rows),
        }
    }

    /// Takes what is held out, to be shared and never written again. A ring has nothing to give:
    /// it forgets what it holds as it goes.
    pub(super) fn seal(&mut self) -> Option<Sealed> {
        if self.len() == 0 {
            return None;
        }
        match self {
            Store::Whole { keys, values, .. } => {
                let (keys, values) = (std::mem::take(keys).filled(), std::mem::take(values).filled());
                keys.zip(values).map(|(keys, values)| Sealed::Whole(Arc::new([keys, values])))
            }
            Store::Ring { .. } => None,
            Store::Quantized(quantized) => {
                let emptied = quantized.emptied();
                Some(Sealed::Quantized(Arc::new(std::mem::replace(quantized, emptied))))
            }
        }
    }
}

/// Pieces one behind the other.
pub(super) fn joined(pieces: Vec<[Tensor<4>; 2]>) -> Option<[Tensor<4>; 2]> {
    if pieces.len() <= 1 {
        return pieces.into_iter().next();
    }
    Some([0, 1].map(|which| Tensor::cat(pieces.iter().map(|piece| piece[which].clone()).collect(), 1)))
}

/// Columns that never change, and which other caches may read too.
#[derive(Debug, Clone)]
pub(super) enum Sealed {
    Whole(Arc<[Tensor<4>; 2]>),
    Quantized(Arc<Quantized>),
}

/// A cache's view of sealed columns.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) sealed: Sealed,
    /// The first so many of its columns.
    pub(super) len: usize,
    /// For each row of the cache the row it reads.
    pub(super) rows: Arc<[usize]>,
    /// Bytes they take, room that was left over included.
    pub(super) bytes: usize,
}

impl Shared {
    pub(super) fn form(&self) -> Option<Form> {
        match &self.sealed {
            Sealed::Whole(both) => Some((both[0].dtype(), both[0].device())),
            Sealed::Quantized(quantized) => quantized.form().map(|(_, dtype, device)| (*dtype, device.clone())),
        }
    }

    /// What attention reads of it.
    pub(super) fn part(&self) -> Option<Part> {
        let both = match &self.sealed {
            Sealed::Whole(both) => Some((**both).clone()),
            Sealed::Quantized(quantized) => quantized.read(),
        };
        let [keys, values] = both?.map(|tensor| tensor.narrow(1, 0, self.len));
        Some(Part { keys, values, rows: Some(self.rows.clone()) })
    }
}
