//! A tensor that grows along its positions, in place.

use burn::tensor::Tensor;

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

    /// A buffer filled with this.
    pub(super) fn filled_with(tensor: Tensor<4>) -> Self {
        Self { len: tensor.dims()[1], tensor: Some(tensor) }
    }

    /// The filled positions.
    pub(super) fn filled(&self) -> Option<Tensor<4>> {
        self.tensor.clone().filter(|_| self.len > 0).map(|t| t.narrow(1, 0, self.len))
    }

    /// Writes `new` behind the filled positions. Without a `max` room grows by half when it runs
    /// out; a write otherwise touches the new positions only, as long as no one else holds the
    /// tensor.
    pub(super) fn append(&mut self, new: Tensor<4>, max: Option<usize>) {
        let [batch, count, heads, width] = new.dims();
        let needed = self.len + count;
        let fits = |tensor: &Tensor<4>| {
            let [held_batch, room, held_heads, held_width] = tensor.dims();
            [held_batch, held_heads, held_width] == [batch, heads, width]
                && room >= needed
                && tensor.dtype() == new.dtype()
                && tensor.device() == new.device()
        };
        let tensor = match self.tensor.take() {
            Some(tensor) if fits(&tensor) => tensor,
            held => {
                let room = held.as_ref().filter(|_| self.len > 0).map_or(0, |held| held.dims()[1]);
                let room = max.unwrap_or(room + room / 2).max(needed);
                if room == needed && self.len == 0 {
                    self.len = needed;
                    self.tensor = Some(new);
                    return;
                }
                let empty = Tensor::zeros([batch, room, heads, width], (&new.device(), new.dtype()));
                match held.filter(|_| self.len > 0) {
                    Some(held) => {
                        let filled = held.narrow(1, 0, self.len);
                        empty.slice_assign([0..batch, 0..self.len, 0..heads, 0..width], filled)
                    }
                    None => empty,
                }
            }
        };
        self.tensor = Some(tensor.slice_assign([0..batch, self.len..needed, 0..heads, 0..width], new));
        self.len = needed;
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
