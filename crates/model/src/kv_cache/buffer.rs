//! A tensor that grows along its position axis in place.

use std::ops::Range;

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Float, Tensor};

use super::keys::{heads_first, select_rows};
use crate::device::is_cubecl;

/// A tensor `[batch, room, head, width]`, where `room` is the capacity in positions. Only the first `rows` rows and
/// `len` positions are filled.
///
/// Matrix products on a device read a matrix in place only if its rows are contiguous, so each head's positions are
/// stored contiguously: the tensor is `[batch, head, room, width]`, and callers get a view with these axes swapped.
#[derive(Debug, Clone)]
pub(super) struct Buffer<K: Basic = Float> {
    by_head: Option<Tensor<4, K>>,
    rows: usize,
    len: usize,
}

fn swapped<K: Basic>(tensor: Tensor<4, K>) -> Tensor<4, K> {
    tensor.swap_dims(1, 2)
}

impl<K: Basic> Default for Buffer<K> {
    fn default() -> Self {
        Self { by_head: None, rows: 0, len: 0 }
    }
}

impl<K: Basic> Buffer<K> {
    /// Creates an empty buffer with room for `[rows, room, head, width]`.
    pub(super) fn with_room([rows, room, heads, width]: [usize; 4], dtype: DType, device: &Device) -> Self {
        Self { by_head: Some(Tensor::zeros([rows, heads, room, width], (device, dtype))), rows, len: 0 }
    }

    pub(super) fn tensor(&self) -> Option<&Tensor<4, K>> {
        self.by_head.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Creates a buffer that holds this tensor.
    pub(super) fn filled_with(tensor: Tensor<4, K>) -> Self {
        let [rows, len, ..] = tensor.dims();
        Self { rows, len, by_head: Some(swapped(tensor)) }
    }

    /// The filled part, `[rows, len, head, width]`.
    pub(super) fn filled(&self) -> Option<Tensor<4, K>> {
        self.by_head.clone().filter(|_| self.len > 0).map(|tensor| swapped(self.view(tensor)))
    }

    fn view(&self, by_head: Tensor<4, K>) -> Tensor<4, K> {
        let rows = by_head.dims()[0];
        let tensor = if rows > self.rows { by_head.narrow(0, 0, self.rows) } else { by_head };
        tensor.narrow(2, 0, self.len)
    }

    /// Appends `new` after the filled positions. When the capacity runs out, it grows by half, or to `max` if given.
    /// While the capacity suffices and no other handle to the tensor exists, a write touches only the new positions.
    pub(super) fn append(&mut self, new: Tensor<4, K>, max: Option<usize>) {
        let [batch, count, heads, width] = new.dims();
        let needed = self.len + count;
        let fits = |tensor: &Tensor<4, K>| {
            let [held_batch, held_heads, room, held_width] = tensor.dims();
            [held_heads, held_width] == [heads, width]
                && held_batch >= batch
                && room >= needed
                && tensor.dtype() == new.dtype()
                && tensor.device() == new.device()
        };
        if !self.by_head.as_ref().is_some_and(fits) {
            let held = self.by_head.clone().filter(|_| self.len > 0);
            let room = held.as_ref().map_or(0, |held| held.dims()[2]);
            let room = max.unwrap_or(room + room / 2).max(needed);
            // Backends other than CubeCL use the prompt's tensors as they are, without a copy.
            if room == needed && self.len == 0 && !is_cubecl(&new.device()) {
                *self = Self::filled_with(new);
                return;
            }
            let empty = Tensor::zeros([batch, heads, room, width], (&new.device(), new.dtype()));
            // Allocate before moving anything: if the device is out of memory, the existing content stays.
            self.by_head = Some(match held {
                Some(held) => empty.slice_assign([0..batch, 0..heads, 0..self.len, 0..width], self.view(held)),
                None => empty,
            });
        }
        let Some(tensor) = self.by_head.take() else { return };
        self.rows = batch;
        let place = [0..batch, 0..heads, self.len..needed, 0..width];
        self.by_head = Some(tensor.slice_assign(place, heads_first(new)));
        self.len = needed;
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// A buffer with only these positions.
    pub(super) fn kept(&self, kept: Range<usize>) -> Self {
        self.filled().map_or(Self::default(), |all| Self::filled_with(all.narrow(1, kept.start, kept.len())))
    }

    /// A buffer with these rows of the filled part.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        self.filled().map_or(Self::default(), |all| Self::filled_with(select_rows(all, rows)))
    }

    /// Size in bytes, including unused capacity.
    pub(super) fn bytes(&self) -> usize {
        self.by_head.as_ref().map_or(0, |all| all.shape().num_elements() * all.dtype().size())
    }
}
