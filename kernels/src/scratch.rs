//! Thread-local buffers that are reused from call to call.

use std::cell::Cell;
use std::thread::LocalKey;

/// A reusable buffer.
pub(crate) type ScratchBuffer<T> = LocalKey<Cell<Vec<T>>>;

thread_local! {
    /// Packed panels of B.
    pub(crate) static PACKED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Weights of block-quantized B, as bytes.
    pub(crate) static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Scales and offsets of these weights.
    pub(crate) static FACTORS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Columns decoded from block-quantized B.
    pub(crate) static DECODED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Queries gathered from several heads and batch rows.
    pub(crate) static GATHERED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Weighted sums of values.
    pub(crate) static MIXED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Attention scores.
    pub(crate) static SCORES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with a 64-byte aligned slice of `len` numbers with unspecified contents. The buffer is taken out of the
/// slot meanwhile, so nested use on the same thread is slower, but not an error.
pub(crate) fn with_scratch<T: Copy + Default, R>(
    slot: &'static ScratchBuffer<T>,
    len: usize,
    f: impl FnOnce(&mut [T]) -> R,
) -> R {
    let line = 64 / size_of::<T>();
    let mut buffer = slot.take();
    if buffer.len() < len + line {
        buffer.clear();
        buffer.resize(len + line, T::default());
    }
    // `align_offset` may decline (usize::MAX); alignment only matters for speed.
    let start = match buffer.as_ptr().align_offset(64) {
        skip if skip < line => skip,
        _ => 0,
    };
    let result = f(&mut buffer[start..start + len]);
    slot.set(buffer);
    result
}
