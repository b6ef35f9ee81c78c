//! A tensor that grows along its positions, in place.

use burn::tensor::{DType, Device, Tensor};

/// `[rows, room, head, width]`, of which the first `rows` rows and `len` positions are filled.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer {
    tensor: Option<Tensor<4>>,
    rows: usize,
    len: usize,
}

impl Buffer {
    /// An empty buffer with this capacity.
    pub(super) fn with_room(shape: [usize; 4], dtype: DType, device: &Device) -> Self {
        Self { tensor: Some(Tensor::zeros(shape, (device, dtype))), rows: shape[0], len: 0 }
    }

    pub(super) fn tensor(&self) -> Option<&Tensor<4>> {
        self.tensor.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A buffer filled with this.
    pub(super) fn filled_with(tensor: Tensor<4>) -> Self {
        let [rows, len, ..] = tensor.dims();
        Self { rows, len, tensor: Some(tensor) }
    }

    /// The filled part.
    pub(super) fn filled(&self) -> Option<Tensor<4>> {
        self.tensor.clone().filter(|_| self.len > 0).map(|tensor| self.view(tensor))
    }

    fn view(&self, tensor: Tensor<4>) -> Tensor<4> {
        let rows = tensor.dims()[0];
        let tensor = if rows > self.rows { tensor.narrow(0, 0, self.rows) } else { tensor };
        tensor.narrow(1, 0, self.len)
    }

    /// Writes `new` behind the filled positions. Without a `max` room grows by half when it runs
    /// out; a write otherwise touches the new positions only, as long as no one else holds the
    /// tensor.
    pub(super) fn append(&mut self, new: Tensor<4>, max: Option<usize>) {
        let [batch, count, heads, width] = new.dims();
        let needed = self.len + count;
        let fits = |tensor: &Tensor<4>| {
            let [held_batch, room, held_heads, held_width] = tensor.dims();
            [held_heads, held_width] == [heads, width]
                && held_batch >= batch
                && room >= needed
                && tensor.dtype() == new.dtype()
                && tensor.device() == new.device()
        };
        let tensor = match self.tensor.take() {
            Some(tensor) if fits(&tensor) => tensor,
            held => {
                let held = held.filter(|_| self.len > 0);
                let room = held.as_ref().map_or(0, |held| held.dims()[1]);
                let room = max.unwrap_or(room + room / 2).max(needed);
                if room == needed && self.len == 0 {
                    *self = Self::filled_with(new);
                    return;
                }
                let empty = Tensor::zeros([batch, room, heads, width], (&new.device(), new.dtype()));
                match held {
                    Some(held) => empty.slice_assign([0..batch, 0..self.len, 0..heads, 0..width], self.view(held)),
                    None => empty,
                }
            }
        };
        self.rows = batch;
        self.tensor = Some(tensor.slice_assign([0..batch, self.len..needed, 0..heads, 0..width], new));
        self.len = needed;
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
