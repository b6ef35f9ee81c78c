//! Ring buffers for layers with a window: new positions overwrite the oldest.

use burn::tensor::Tensor;

/// Two tensors `[batch, room, kv_head, d_head]`, used as a ring.
#[derive(Debug, Clone, Default)]
pub(super) struct Ring {
    stored: Option<[Tensor<4>; 2]>,
    /// Index of the oldest column.
    start: usize,
    /// Number of columns held.
    len: usize,
    /// Minimum capacity in columns.
    least_room: usize,
    staged: Option<Box<Staged>>,
}

/// Columns staged to be appended.
#[derive(Debug, Clone)]
enum Staged {
    /// Replacement for the ring's tensors, holding this many columns. None of the old contents is kept.
    Instead([Tensor<4>; 2], usize),
    /// Columns that fit into the existing ring.
    Columns([Tensor<4>; 2]),
}

/// Allocates tensors with this capacity, starting with the given pieces.
fn in_room(room: usize, pieces: Vec<[Tensor<4>; 2]>) -> [Tensor<4>; 2] {
    [0, 1].map(|which| {
        let [batch, _, heads, d_head] = pieces[0][which].dims();
        let form = (&pieces[0][which].device(), pieces[0][which].dtype());
        let mut filled = 0;
        pieces.iter().fold(Tensor::zeros([batch, room, heads, d_head], form), |all, piece| {
            let from = filled;
            filled += piece[which].dims()[1];
            all.slice_assign([0..batch, from..filled, 0..heads, 0..d_head], piece[which].clone())
        })
    })
}

impl Ring {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn stored(&self) -> Option<&[Tensor<4>; 2]> {
        self.stored.as_ref()
    }

    /// Creates an empty ring that allocates at least `least_room` columns on its first write.
    pub(super) fn with_room(least_room: usize) -> Self {
        Self { least_room, ..Self::default() }
    }

    /// A ring with the same minimum capacity that holds these columns.
    pub(super) fn filled_with(&self, keys: Tensor<4>, values: Tensor<4>) -> Self {
        Self { len: keys.dims()[1], start: 0, stored: Some([keys, values]), ..Self::with_room(self.least_room) }
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

    /// Stages new columns, allocating room for them or a replacement ring if needed. `width` is the number of columns
    /// that the ring needs in the long run.
    pub(super) fn stage(&mut self, new: [Tensor<4>; 2], keep: usize, width: usize) {
        let count = new[0].dims()[1];
        let keep = keep.min(self.len + count);
        let room = self.stored.as_ref().map_or(0, |stored| stored[0].dims()[1]);
        // Grow in steps, so that a ring that fills up is not reallocated for every column.
        let more = keep.max((2 * room).min(width)).max(self.least_room);
        if count >= keep {
            let kept = new.map(|tensor| tensor.narrow(1, count - keep, keep));
            self.staged = Some(Box::new(Staged::Instead(in_room(more, vec![kept]), keep)));
            return;
        }
        if keep > room {
            (self.stored, self.start) = (Some(in_room(more, self.pieces())), 0);
        }
        self.staged = Some(Box::new(Staged::Columns(new)));
    }

    /// Appends the staged columns and keeps the last `keep` columns overall.
    pub(super) fn settle(&mut self, keep: usize) {
        match self.staged.take().map(|staged| *staged) {
            Some(Staged::Instead(stored, len)) => (self.stored, self.start, self.len) = (Some(stored), 0, len),
            Some(Staged::Columns(new)) => self.write(new, keep),
            None => {}
        }
    }

    /// Discards the staged columns.
    pub(super) fn abandon(&mut self) {
        self.staged = None;
    }

    /// Appends fewer than `keep` new columns. If the ring is full, they overwrite the oldest ones.
    fn write(&mut self, new: [Tensor<4>; 2], keep: usize) {
        let Some(stored) = self.stored.take() else { return };
        let (count, room) = (new[0].dims()[1], stored[0].dims()[1]);
        let keep = keep.min(self.len + count);
        let dropped = self.len + count - keep;
        let end = (self.start + self.len) % room;
        self.start = (self.start + dropped) % room;
        self.len = keep;
        let first = count.min(room - end);
        let mut new = new.into_iter();
        self.stored = Some(stored.map(|tensor| {
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
        }));
    }

    /// Drops the newest `count` columns.
    pub(super) fn drop_last(&mut self, count: usize) {
        self.len -= count.min(self.len);
    }
}
