//! Portable kernels. Register tile: up to 4 rows × 2 vectors of 4, left to the compiler's vectorizer.

use crate::element::Element;
use crate::micro_tile::{DOTS, Tile, by_shape};
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// See [`crate::micro::run`].
///
/// # Safety
/// The contract of [`Tile`] and `1 <= rows <= 4`.
pub(crate) unsafe fn run<T: Element>(rows: usize, vectors: usize, tile: Tile<T>) {
    // SAFETY: forwarded contract.
    unsafe { by_shape!(kernel(tile), rows, vectors, [1 2 3 4], [1 2]) }
}

/// # Safety
/// As for [`run`], with `rows == M` and `vectors == V`.
unsafe fn kernel<const M: usize, const V: usize, T: Element>(t: Tile<T>) {
    // SAFETY: the contract of `Tile` guarantees these extents of A, which are not written meanwhile.
    let a: [&[f32]; M] = std::array::from_fn(|i| unsafe { from_raw_parts(t.a.wrapping_add(i * t.lda), t.k) });
    // SAFETY: as above, for B.
    let b = |p: usize| unsafe { &*t.b.wrapping_add(p * t.ldb).cast::<[[T; 4]; V]>() };
    // SAFETY: as above, for the bias.
    let bias = (!t.bias.is_null()).then(|| unsafe { from_raw_parts(t.bias, t.cols) });
    let mut acc = [[[0.0f32; 4]; V]; M];
    #[allow(clippy::needless_range_loop)] // plain indices vectorize best
    for p in 0..t.k {
        let b = b(p).map(|b| b.map(T::widened));
        for i in 0..M {
            let a = a[i][p];
            for v in 0..V {
                for l in 0..4 {
                    acc[i][v][l] += a * b[v][l];
                }
            }
        }
    }
    for (i, acc) in acc.iter().enumerate() {
        // SAFETY: as above, for C; nothing else accesses this tile of it.
        let c = unsafe { from_raw_parts_mut(t.c.wrapping_add(i * t.ldc), t.cols) };
        for (j, (c, &sum)) in c.iter_mut().zip(acc.as_flattened()).enumerate() {
            let start = if t.accumulate { *c } else { 0.0 };
            *c = start + sum + bias.map_or(0.0, |bias| bias[j]);
        }
    }
}

/// See [`crate::micro::dots`].
pub(crate) fn dots<const M: usize, T: Element>(a: [&[f32]; M], b: [&[T]; DOTS]) -> [[f32; DOTS]; M] {
    const LANES: usize = 8;
    a.map(|a| {
        let (a_lanes, a_rest) = a.as_chunks::<LANES>();
        b.map(|b| {
            let (b_lanes, b_rest) = b.as_chunks::<LANES>();
            let mut acc = [0.0; LANES];
            for (a, b) in a_lanes.iter().zip(b_lanes) {
                for l in 0..LANES {
                    acc[l] += a[l] * b[l].widened();
                }
            }
            let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b.widened()).sum();
            acc.iter().sum::<f32>() + rest
        })
    })
}
