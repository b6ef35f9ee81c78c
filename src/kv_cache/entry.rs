//! Keys and values of one layer.

use burn::tensor::{DType, Device, Tensor};

use super::buffer::Buffer;
use crate::error::CacheError;

/// Keys and values of one layer, `[batch, position, kv_head, d_head]`.
#[derive(Debug, Clone)]
pub struct Entry {
    keys: Buffer,
    values: Buffer,
    kv_heads: usize,
    d_head: usize,
    frozen: bool,
}

impl Entry {
    pub(super) fn new(kv_heads: usize, d_head: usize) -> Self {
        Self { keys: Buffer::default(), values: Buffer::default(), kv_heads, d_head, frozen: false }
    }

    /// Keys and values held, with those given behind them; kept unless the entry is frozen. One
    /// row of a frozen entry goes before each row given.
    ///
    /// # Shapes
    /// - given: `[batch, new, kv_head, d_head]`
    /// - back: `[batch, past + new, kv_head, d_head]`
    ///
    /// # Errors
    /// [`CacheError::Shape`] or [`CacheError::Batch`]; the entry is left as it was.
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        for given in [keys.dims(), values.dims()] {
            let expected = [keys.dims()[0], keys.dims()[1], self.kv_heads, self.d_head];
            if given != expected {
                return Err(CacheError::Shape { expected, given });
            }
        }
        let (run, held) = (keys.dims()[0], self.keys.tensor().map(|t| t.dims()[0]));
        if let Some(cache) = held.filter(|held| *held != run && !(self.frozen && *held == 1)) {
            return Err(CacheError::Batch { cache, run });
        }
        Ok(match self.frozen {
            true => (self.keys.followed_by(keys), self.values.followed_by(values)),
            false => (self.keys.append(keys), self.values.append(values)),
        })
    }

    /// Keys held, before rotation, `[batch, position, kv_head, d_head]`; `None` if there are none.
    pub fn keys(&self) -> Option<Tensor<4>> {
        self.keys.filled()
    }

    /// Values held, `[batch, position, kv_head, d_head]`; `None` if there are none.
    pub fn values(&self) -> Option<Tensor<4>> {
        self.values.filled()
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    pub(super) fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
        self.values.truncate(len);
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |buffer: &Buffer| buffer.tensor().map_or(0, |t| t.shape().num_elements() * t.dtype().size());
        of(&self.keys) + of(&self.values)
    }

    /// Whether a run of this model can append to the entry.
    pub(super) fn check(
        &self,
        layer: usize,
        [kv_heads, d_head]: [usize; 2],
        len: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<(), CacheError> {
        if [self.kv_heads, self.d_head] != [kv_heads, d_head] {
            return Err(CacheError::Model { layer, cache: [self.kv_heads, self.d_head], model: [kv_heads, d_head] });
        }
        if self.len() != len {
            return Err(CacheError::Length { layer, entry: self.len(), mask: len });
        }
        if let Some(held) = self.keys.tensor().filter(|_| len > 0) {
            if held.dtype() != dtype {
                let (cache, run) = (format!("{:?}", held.dtype()), format!("{dtype:?}"));
                return Err(CacheError::DType { cache, run });
            }
            if held.device() != *device {
                let (cache, run) = (format!("{:?}", held.device()), format!("{device:?}"));
                return Err(CacheError::Device { cache, run });
            }
        }
        Ok(())
    }
}
