//! AVX-512 kernels. Register tile: up to 8 rows × 3 vectors of 16 (24 accumulators, 3
//! vectors of B and one broadcast of A fit the 32 registers).

use crate::element::{Element, Pair};
use crate::micro_tile::{DOTS, Tile, by_shape};
use std::arch::x86_64::*;

/// See [`crate::micro::run`].
///
/// # Safety
/// The contract of [`Tile`], `1 <= rows <= 8`, and a CPU with AVX-512 F, VL and BW.
#[target_feature(enable = "avx512f,avx512vl,avx512bw")]
pub(crate) unsafe fn run<T: Element>(rows: usize, vectors: usize, tile: Tile<T>) {
    // SAFETY: forwarded contract.
    unsafe { by_shape!(kernel(tile), rows, vectors, [1 2 3 4 5 6 7 8], [1 2 3]) }
}

/// See [`crate::micro::run_pairs`].
///
/// # Safety
/// As for [`run`], and a CPU with AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512bf16")]
pub(crate) unsafe fn run_pairs(rows: usize, vectors: usize, tile: Tile<Pair>) {
    // SAFETY: forwarded contract.
    unsafe { by_shape!(pairs_kernel(tile), rows, vectors, [1 2 3 4 5 6 7 8], [1 2 3]) }
}

/// The register tile: `$add(a, b, sum)` adds a vector's products to its sums.
macro_rules! tile {
    ($(#[$meta:meta])* $name:ident, $features:literal, $add:expr) => {
        $(#[$meta])*
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize, const V: usize, T: Element>(t: Tile<T>) {
            let mut acc = [[_mm512_setzero_ps(); V]; M];
            let mut b = t.b;
            for p in 0..t.k {
                let mut bv = [_mm512_setzero_ps(); V];
                for (v, bv) in bv.iter_mut().enumerate() {
                    // SAFETY: by the contract of `Tile` the panel has k groups of V vectors.
                    *bv = unsafe { T::load16(b.wrapping_add(v * 16), 0xffff) };
                    if t.ahead > 0 {
                        _mm_prefetch::<_MM_HINT_T1>(b.wrapping_add(v * 16 + t.ahead).cast());
                    }
                }
                b = b.wrapping_add(t.ldb);
                for (i, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: by the contract of `Tile` row i < M of A has k floats.
                    let av = _mm512_set1_ps(unsafe { *t.a.wrapping_add(i * t.lda + p) });
                    for v in 0..V {
                        acc[v] = $add(av, bv[v], acc[v]);
                    }
                }
            }
            // Lanes of the last vector that exist in C.
            let last: __mmask16 = 0xffff >> (V * 16 - t.cols);
            let mask = |v: usize| if v + 1 == V { last } else { 0xffff };
            // SAFETY: only existing columns of the bias or one of the M rows of C: masked-off lanes are not read.
            let load = |from: *const f32, v: usize| unsafe { _mm512_maskz_loadu_ps(mask(v), from) };
            if !t.bias.is_null() {
                for v in 0..V {
                    let bias = load(t.bias.wrapping_add(v * 16), v);
                    for acc in &mut acc {
                        acc[v] = _mm512_add_ps(acc[v], bias);
                    }
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                for (v, &sum) in acc.iter().enumerate() {
                    let c = t.c.wrapping_add(i * t.ldc + v * 16);
                    let sum = if t.accumulate { _mm512_add_ps(sum, load(c, v)) } else { sum };
                    // SAFETY: only existing columns in one of the M rows of C: masked-off lanes are not written.
                    unsafe { _mm512_mask_storeu_ps(c, mask(v), sum) };
                }
            }
        }
    };
}

tile! {
    /// # Safety
    /// As for [`run`], with `rows == M` and `vectors == V`.
    kernel, "avx512f,avx512vl,avx512bw", |a, b, sum| _mm512_fmadd_ps(a, b, sum)
}
tile! {
    /// # Safety
    /// As for [`run_pairs`], with `rows == M` and `vectors == V`.
    pairs_kernel, "avx512f,avx512vl,avx512bw,avx512bf16", |a, b, sum| _mm512_dpbf16_ps(sum, bits(a), bits(b))
}

/// Reinterprets a vector as pairs of `bf16`.
#[inline(always)]
fn bits(x: __m512) -> __m512bh {
    // SAFETY: both types are 512 bits, and any bit pattern is valid for them.
    unsafe { std::mem::transmute(x) }
}

/// See [`crate::micro::dots`].
///
/// # Safety
/// Every slice has length `k`; the CPU has AVX-512 F, VL and BW.
#[target_feature(enable = "avx512f,avx512vl,avx512bw")]
pub(crate) unsafe fn dots<const M: usize, T: Element>(
    k: usize,
    a: [&[f32]; M],
    b: [&[T]; DOTS],
    ahead: usize,
) -> [[f32; DOTS]; M] {
    let mut acc = [[_mm512_setzero_ps(); DOTS]; M];
    for p in (0..k).step_by(16) {
        let mask: __mmask16 = if k - p >= 16 { 0xffff } else { (1 << (k - p)) - 1 };
        let mut bv = [_mm512_setzero_ps(); DOTS];
        for (bv, b) in bv.iter_mut().zip(b) {
            // SAFETY: only elements p.. that exist are read.
            *bv = unsafe { T::load16(b.as_ptr().wrapping_add(p), mask) };
            _mm_prefetch::<_MM_HINT_T0>(b.as_ptr().wrapping_add(p + ahead).cast());
        }
        for (acc, a) in acc.iter_mut().zip(a) {
            // SAFETY: as above.
            let av = unsafe { _mm512_maskz_loadu_ps(mask, a.as_ptr().wrapping_add(p)) };
            for d in 0..DOTS {
                acc[d] = _mm512_fmadd_ps(av, bv[d], acc[d]);
            }
        }
    }
    let mut sums = [[0.0; DOTS]; M];
    for (sums, acc) in sums.iter_mut().zip(acc) {
        for (sum, acc) in sums.iter_mut().zip(acc) {
            *sum = _mm512_reduce_add_ps(acc);
        }
    }
    sums
}
