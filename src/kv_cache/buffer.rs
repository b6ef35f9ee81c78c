//! A tensor that grows along its positions, in place.

use burn::tensor::Tensor;

use crate::flex;

/// `[batch, room, kv_head, d_head]`, of which the first `len` positions are filled.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer {
    tensor: Option<Tensor<4>>,
    len: usize,
}

impl Buffer {
    pub(super) fn tensor(&self) -> Option<&Tensor<4>> {
        self.tensor.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The filled positions.
    pub(super) fn filled(&self) -> Option<Tensor<4>> {
        self.tensor.clone().filter(|_| self.len > 0).map(|t| t.narrow(1, 0, self.len))
    }

    /// The filled positions with `new` behind them, nothing kept.
    pub(super) fn followed_by(&self, new: Tensor<4>) -> Tensor<4> {
        let Some(past) = self.filled() else { return new };
        if let Some(joined) = flex::join(&past, &new) {
            return joined;
        }
        let [batch, _, heads, width] = new.dims();
        Tensor::cat(vec![past.expand([batch, self.len, heads, width]), new], 1)
    }

    /// Writes `new` behind the filled positions and gives them all. Room is doubled when it runs
    /// out; a write otherwise touches the new positions only, as long as no one else holds the
    /// tensor.
    pub(super) fn append(&mut self, new: Tensor<4>) -> Tensor<4> {
        let [batch, count, heads, width] = new.dims();
        let needed = self.len + count;
        let tensor = match self.tensor.take() {
            Some(tensor) if tensor.dims()[1] >= needed => tensor,
            Some(tensor) => {
                let room = needed.max(2 * tensor.dims()[1]);
                let filled = tensor.narrow(1, 0, self.len);
                let empty = Tensor::zeros([batch, room, heads, width], (&new.device(), new.dtype()));
                empty.slice_assign([0..batch, 0..self.len, 0..heads, 0..width], filled)
            }
            None => Tensor::zeros([batch, needed, heads, width], (&new.device(), new.dtype())),
        };
        let tensor = tensor.slice_assign([0..batch, self.len..needed, 0..heads, 0..width], new);
        self.len = needed;
        self.tensor = Some(tensor.clone());
        tensor.narrow(1, 0, needed)
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
