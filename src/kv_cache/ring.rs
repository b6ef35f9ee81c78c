//! Ring buffers for layers with a window: new positions overwrite the oldest.

use burn::tensor::Tensor;

/// Two tensors `[batch, room, kv_head, d_head]`, used as a ring.
#[derive(Debug, Clone, Default)]
pub(super) struct Ring {
    stored: Option<[Tensor<4>; 2]>,
    /// Place of the oldest column.
    start: usize,
    /// Columns held.
    len: usize,
    /// Initial capacity.
    least_room: usize,
}

impl Ring {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn stored(&self) -> Option<&[Tensor<4>; 2]> {
        self.stored.as_ref()
    }

    /// An empty ring that makes room for as many columns at its first write.
    pub(super) fn with_room(least_room: usize) -> Self {
        Self { least_room, ..Self::default() }
    }

    /// The same ring, holding these columns.
    pub(super) fn filled_with(&self, keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { len: keys.dims()[1], start: 0, stored: Some([keys, values]), least_room: self.least_room }
    }

    /// Keys and values, oldest first, in one or two pieces.
    pub(super) fn pieces(&self) -> Vec<[Tensor<4>; 2]> {
        let Some(stored) = &self.stored else { return Vec::new() };
        let room = stored[0].dims()[1];
        let first = self.len.min(room - self.start);
        let piece = |from: usize, len: usize| stored.each_ref().map(|t| t.clone().narrow(1, from, len));
        let pieces = [(self.start, first), (0, self.len - first)];
        pieces.into_iter().filter(|(_, len)| *len > 0).map(|(from, len)| piece(from, len)).collect()
    }

    /// Takes new columns, and keeps the last `keep` of all. `width` is as many as the ring will
    /// need in the long run.
    pub(super) fn push(&mut self, new: [Tensor<4>; 2], keep: usize, width: usize) {
        let count = new[0].dims()[1];
        let keep = keep.min(self.len + count);
        if keep == 0 {
            *self = Self::with_room(self.least_room);
            return;
        }
        let room = self.stored.as_ref().map_or(0, |stored| stored[0].dims()[1]);
        let batch = new[0].dims()[0];
        if keep > room || count >= keep || self.stored.as_ref().is_none_or(|stored| stored[0].dims()[0] != batch) {
            let mut pieces = if self.len > 0 { self.pieces() } else { Vec::new() };
            pieces.push(new);
            // Room in steps, so that a ring that fills up is not made anew for every column.
            let room = keep.max((2 * room).min(width)).max(self.least_room);
            let [keys, values] = [0, 1].map(|which| {
                let all: Vec<_> = pieces.iter().map(|piece| piece[which].clone()).collect();
                let all = if all.len() == 1 { all[0].clone() } else { Tensor::cat(all, 1) };
                let [batch, len, heads, d_head] = all.dims();
                let kept = all.narrow(1, len - keep, keep);
                let empty = Tensor::zeros([batch, room, heads, d_head], (&kept.device(), kept.dtype()));
                empty.slice_assign([0..batch, 0..keep, 0..heads, 0..d_head], kept)
            });
            *self = Self { stored: Some([keys, values]), start: 0, len: keep, least_room: self.least_room };
            return;
        }
        let dropped = self.len + count - keep;
        let end = (self.start + self.len) % room;
        self.start = (self.start + dropped) % room;
        self.len = keep;
        let first = count.min(room - end);
        let mut new = new.into_iter();
        self.stored = self.stored.take().map(|stored| {
            stored.map(|tensor| {
                let Some(new) = new.next() else { return tensor };
                let [batch, _, heads, d_head] = new.dims();
                let mut tensor = tensor;
                for (from, len, at) in [(0, first, end), (first, count - first, 0)] {
                    if len > 0 {
                        let piece = new.clone().narrow(1, from, len);
                        tensor = tensor.slice_assign([0..batch, at..at + len, 0..heads, 0..d_head], piece);
                    }
                }
                tensor
            })
        });
    }

    /// Drops the newest `count` columns.
    pub(super) fn drop_last(&mut self, count: usize) {
        self.len -= count.min(self.len);
    }
}
