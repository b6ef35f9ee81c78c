//! Quantized keys and values in main memory.

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use hooklens_hooks::upload;

use super::kind::{Form, Quantization};
use super::quantized::Bits;
use crate::error::{BoxError, CacheError};

/// Capacity, in positions, of the chunks that short appends fill. A longer append gets a chunk of its own length.
const CHUNK: usize = 32;

/// Quantized keys or values, `[rows, len, head, width]`.
#[derive(Debug, Clone)]
struct Chunks {
    /// Number of heads, and width of a head.
    heads: [usize; 2],
    chunks: Vec<Chunk>,
}

/// A chunk of consecutive positions, stored position by position and row by row.
#[derive(Debug, Clone)]
struct Chunk {
    positions: usize,
    room: usize,
    codes: Vec<u8>,
    /// Minimum and step of each quantization group.
    groups: Vec<[f32; 2]>,
}

/// Quantized keys and values, stored as bytes.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    quantization: Quantization,
    /// Number of rows, and element type and device of the dequantized tensors.
    form: Option<(usize, DType, Device)>,
    len: usize,
    /// Number of dropped positions at the start of the first chunk.
    skipped: usize,
    stored: [Chunks; 2],
}

impl Codes {
    pub(super) fn new(quantization: Quantization) -> Self {
        let codes = || Chunks { heads: [0, 0], chunks: Vec::new() };
        Self { quantization, form: None, len: 0, skipped: 0, stored: [codes(), codes()] }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn form(&self) -> Option<Form> {
        self.form.as_ref().map(|(_, dtype, device)| (*dtype, device.clone()))
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |chunk: &Chunk| chunk.codes.capacity() + 8 * chunk.groups.capacity();
        self.stored.iter().flat_map(|codes| &codes.chunks).map(of).sum()
    }

    /// Appends keys and values.
    pub(super) fn push(&mut self, new: [Tensor<4>; 2]) -> Result<(), CacheError> {
        let [rows, count, ..] = new[0].dims();
        if self.len == 0 {
            *self = Self::new(self.quantization);
            self.form = Some((rows, new[0].dtype(), new[0].device()));
        }
        let unreadable = |source: BoxError| CacheError::Unreadable { source };
        // Read both before storing either, so that a device failure leaves the cache unchanged.
        let mut read = Vec::new();
        for tensor in new {
            let [_, _, heads, width] = tensor.dims();
            let data = hooklens_hooks::read(tensor).map_err(|e| unreadable(e.into()))?.convert::<f32>();
            read.push(([heads, width], data.try_into_vec::<f32>().map_err(|e| unreadable(e.into()))?));
        }
        for (codes, ([heads, width], values)) in self.stored.iter_mut().zip(read) {
            codes.heads = [heads, width];
            let cell = heads * width;
            for position in 0..count {
                let grouping = Grouping::of(self.quantization, width);
                let rows = (0..rows).map(|row| &values[(row * count + position) * cell..][..cell]);
                codes.push(rows, grouping, count - position);
            }
        }
        self.len += count;
        Ok(())
    }

    /// Drops all but the last `keep` positions. A chunk's memory is freed once all its positions are dropped.
    pub(super) fn keep_last(&mut self, keep: usize) {
        let dropped = self.len.saturating_sub(keep);
        self.skipped += dropped;
        self.len -= dropped;
        while let Some(first) = self.stored[0].chunks.first().map(|chunk| chunk.positions) {
            if first > self.skipped {
                break;
            }
            self.skipped -= first;
            self.stored.iter_mut().for_each(|codes| drop(codes.chunks.remove(0)));
        }
    }

    /// Dequantizes keys and values to their original element type.
    pub(super) fn read(&self) -> Option<[Tensor<4>; 2]> {
        let (rows, dtype, device) = self.form.as_ref().filter(|_| self.len > 0)?;
        Some(self.stored.each_ref().map(|codes| {
            let [heads, width] = codes.heads;
            let (cell, shape) = (heads * width, [*rows, self.len, heads, width]);
            let grouping = Grouping::of(self.quantization, width);
            let mut values = vec![0.0; rows * self.len * cell];
            let places = codes.chunks.iter().flat_map(|chunk| (0..chunk.positions).map(move |at| (chunk, at)));
            for (position, (chunk, at)) in places.skip(self.skipped).enumerate() {
                for row in 0..*rows {
                    let out = &mut values[(row * self.len + position) * cell..][..cell];
                    chunk.read(at * rows + row, grouping, out);
                }
            }
            upload(TensorData::new(values, shape), (device, *dtype))
        }))
    }

    pub(super) fn truncate(&mut self, len: usize) {
        for codes in &mut self.stored {
            let mut left = if len == 0 { 0 } else { self.skipped + len };
            for chunk in &mut codes.chunks {
                let positions = chunk.positions.min(left);
                let groups = chunk.groups.len() / chunk.positions.max(1);
                let bytes = chunk.codes.len() / chunk.positions.max(1);
                chunk.groups.truncate(groups * positions);
                chunk.codes.truncate(bytes * positions);
                chunk.positions = positions;
                left -= positions;
            }
            codes.chunks.retain(|chunk| chunk.positions > 0);
        }
        self.len = self.len.min(len);
        self.skipped = if self.len == 0 { 0 } else { self.skipped };
    }

    /// A copy with these rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        let mut chosen = self.clone();
        let Some((form, ..)) = &mut chosen.form else { return chosen };
        let held = std::mem::replace(form, rows.len());
        for chunk in chosen.stored.iter_mut().flat_map(|codes| &mut codes.chunks) {
            let cells = chunk.positions * held;
            let (bytes, groups) = (chunk.codes.len() / cells.max(1), chunk.groups.len() / cells.max(1));
            let places = (0..chunk.positions).flat_map(|at| rows.iter().map(move |row| at * held + row));
            let (mut codes, mut all_groups) = (Vec::new(), Vec::new());
            for cell in places {
                codes.extend_from_slice(&chunk.codes[cell * bytes..(cell + 1) * bytes]);
                all_groups.extend_from_slice(&chunk.groups[cell * groups..(cell + 1) * groups]);
            }
            (chunk.codes, chunk.groups, chunk.room) = (codes, all_groups, chunk.positions);
        }
        chosen
    }
}

/// How the elements of one row and position are divided into quantization groups.
#[derive(Clone, Copy)]
struct Grouping {
    bits: Bits,
    group: usize,
    d_head: usize,
}

impl Grouping {
    fn of(Quantization { bits, group }: Quantization, d_head: usize) -> Self {
        Self { bits, group: group.min(d_head), d_head }
    }

    /// Number of groups per head.
    fn of_head(self) -> usize {
        if self.bits == Bits::Sixteen { 0 } else { self.d_head.div_ceil(self.group) }
    }
}

impl Chunks {
    /// Stores one position. `left` is the number of positions still to come, including this one.
    fn push<'r>(&mut self, rows: impl ExactSizeIterator<Item = &'r [f32]>, grouping: Grouping, left: usize) {
        if self.chunks.last().is_none_or(|chunk| chunk.positions == chunk.room) {
            let room = if left >= CHUNK { left } else { CHUNK };
            self.chunks.push(Chunk { positions: 0, room, codes: Vec::new(), groups: Vec::new() });
        }
        let Some(chunk) = self.chunks.last_mut() else { return };
        let room = chunk.room;
        let rows_held = rows.len();
        for row in rows {
            let heads = row.len() / grouping.d_head;
            if chunk.codes.capacity() == 0 {
                let groups = heads * grouping.of_head();
                chunk.codes.reserve_exact(room * rows_held * grouping.bits.bytes(row.len()));
                chunk.groups.reserve_exact(room * rows_held * groups);
            }
            if grouping.bits == Bits::Sixteen {
                chunk.codes.extend(row.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
                continue;
            }
            let mut half = None;
            for head in row.chunks(grouping.d_head) {
                for group in head.chunks(grouping.group) {
                    let least = group.iter().copied().fold(f32::INFINITY, f32::min);
                    let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let step = (most - least) / grouping.bits.steps();
                    // Values that are not finite stay visible: codes could not represent them.
                    let finite = group.iter().all(|x| x.is_finite());
                    chunk.groups.push(if finite { [least, step] } else { [f32::NAN; 2] });
                    for x in group {
                        let code =
                            if step > 0.0 { ((x - least) / step).round().min(grouping.bits.steps()) as u8 } else { 0 };
                        match (grouping.bits, half.take()) {
                            (Bits::Sixteen | Bits::Eight, _) => chunk.codes.push(code),
                            (Bits::Four, None) => half = Some(code),
                            (Bits::Four, Some(low)) => chunk.codes.push(low | code << 4),
                        }
                    }
                }
            }
            chunk.codes.extend(half);
        }
        chunk.positions += 1;
    }
}

impl Chunk {
    /// Dequantizes one row of one position.
    fn read(&self, cell: usize, grouping: Grouping, out: &mut [f32]) {
        let bytes = grouping.bits.bytes(out.len());
        let codes = &self.codes[cell * bytes..(cell + 1) * bytes];
        if grouping.bits == Bits::Sixteen {
            let elements = codes.as_chunks::<2>().0.iter().map(|code| bf16::from_le_bytes(*code).to_f32());
            return out.iter_mut().zip(elements).for_each(|(x, element)| *x = element);
        }
        let groups_a_head = grouping.of_head();
        let groups = &self.groups[cell * (out.len() / grouping.d_head) * groups_a_head..];
        for (place, x) in out.iter_mut().enumerate() {
            let (head, within) = (place / grouping.d_head, place % grouping.d_head);
            let [least, step] = groups[head * groups_a_head + within / grouping.group];
            let code = match grouping.bits {
                Bits::Sixteen | Bits::Eight => codes[place],
                Bits::Four => codes[place / 2] >> (4 * (place % 2)) & 15,
            };
            *x = least + f32::from(code) * step;
        }
    }
}
