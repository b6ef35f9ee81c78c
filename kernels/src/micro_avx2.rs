//! AVX2+FMA kernels. Register tile: up to 6 rows × 2 vectors of 8 (12 accumulators, 2
//! vectors of B and one broadcast of A fit the 16 registers).

use crate::element::{Element, load_first};
use crate::micro_tile::{DOTS, Tile, by_shape};
use std::arch::x86_64::*;

/// See [`crate::micro::run`].
///
/// # Safety
/// The contract of [`Tile`], `1 <= rows <= 6`, and a CPU with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<T: Element>(rows: usize, vectors: usize, tile: Tile<T>) {
    // SAFETY: forwarded contract.
    unsafe { by_shape!(kernel(tile), rows, vectors, [1 2 3 4 5 6], [1 2]) }
}

/// The mask of the first `count` lanes, or of all eight lanes if `count` is larger.
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
}

/// Adds one column of A times one group of B to the accumulators.
///
/// # Safety
/// Every row has more than `p` floats; `b` points to `V` vectors; the CPU has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn step<const M: usize, const V: usize, T: Element>(
    rows: &[*const f32; M],
    p: usize,
    b: *const T,
    acc: &mut [[__m256; V]; M],
) {
    // SAFETY: `b` points to V vectors.
    let b: [__m256; V] = std::array::from_fn(|v| unsafe { T::load8(b.wrapping_add(v * 8)) });
    for (row, acc) in rows.iter().zip(acc) {
        // SAFETY: the row has more than p floats.
        let a = _mm256_set1_ps(unsafe { *row.wrapping_add(p) });
        for (acc, b) in acc.iter_mut().zip(b) {
            *acc = _mm256_fmadd_ps(a, b, *acc);
        }
    }
}

/// # Safety
/// As for [`run`], with `rows == M` and `vectors == V`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<const M: usize, const V: usize, T: Element>(t: Tile<T>) {
    let mut acc = [[_mm256_setzero_ps(); V]; M];
    let rows: [*const f32; M] = std::array::from_fn(|i| t.a.wrapping_add(i * t.lda));
    let group = |p: usize| t.b.wrapping_add(p * t.ldb);
    if t.accumulate {
        for i in 0..M {
            let row = t.c.wrapping_add(i * t.ldc);
            _mm_prefetch::<_MM_HINT_T0>(row.cast());
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(8 * V - 1).cast());
        }
    }
    if t.ahead > 0 {
        for p in 0..t.k {
            for v in 0..V {
                _mm_prefetch::<_MM_HINT_T1>(group(p).wrapping_add(v * 8 + t.ahead).cast());
            }
            // SAFETY: by the contract of `Tile`, row i < M of A has k floats and the panel has k groups of V vectors.
            unsafe { step(&rows, p, group(p), &mut acc) };
        }
    } else {
        // Unrolled by four: with twelve products per step, few cycles are left for loop overhead.
        let whole = t.k - t.k % 4;
        for p in (0..whole).step_by(4) {
            // SAFETY: as above; `whole` is at most k.
            unsafe { step(&rows, p, group(p), &mut acc) };
            // SAFETY: as above.
            unsafe { step(&rows, p + 1, group(p + 1), &mut acc) };
            // SAFETY: as above.
            unsafe { step(&rows, p + 2, group(p + 2), &mut acc) };
            // SAFETY: as above.
            unsafe { step(&rows, p + 3, group(p + 3), &mut acc) };
        }
        for p in whole..t.k {
            // SAFETY: as above.
            unsafe { step(&rows, p, group(p), &mut acc) };
        }
    }
    // Masked stores are slow on some CPUs, so they are used only if columns are missing.
    if t.cols == 8 * V {
        // SAFETY: forwarded contract, and no column of the vectors is missing.
        unsafe { store::<true, M, V, T>(t, acc) }
    } else {
        // SAFETY: forwarded contract.
        unsafe { store::<false, M, V, T>(t, acc) }
    }
}

/// # Safety
/// The contract of [`Tile`] for `M` rows and `V` vectors; if `WHOLE`, C has all their `8 * V` columns; the CPU has
/// AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const WHOLE: bool, const M: usize, const V: usize, T: Element>(t: Tile<T>, acc: [[__m256; V]; M]) {
    // Lanes of each vector that exist in C.
    let mut mask = [first_lanes(8); V];
    mask[V - 1] = first_lanes(t.cols - (V - 1) * 8);
    let load = |from: *const f32, v: usize| {
        if WHOLE {
            // SAFETY: a whole vector of the bias or of one of the M rows of C.
            unsafe { _mm256_loadu_ps(from) }
        } else {
            // SAFETY: only existing columns of the bias or one of the M rows of C: masked-off lanes are not read.
            unsafe { _mm256_maskload_ps(from, mask[v]) }
        }
    };
    for (i, acc) in acc.into_iter().enumerate() {
        for (v, mut sum) in acc.into_iter().enumerate() {
            if !t.bias.is_null() {
                sum = _mm256_add_ps(sum, load(t.bias.wrapping_add(v * 8), v));
            }
            let c = t.c.wrapping_add(i * t.ldc + v * 8);
            let sum = if t.accumulate { _mm256_add_ps(sum, load(c, v)) } else { sum };
            if WHOLE {
                // SAFETY: a whole vector of one of the M rows of C.
                unsafe { _mm256_storeu_ps(c, sum) }
            } else {
                // SAFETY: only existing columns: masked-off lanes are not written.
                unsafe { _mm256_maskstore_ps(c, mask[v], sum) }
            }
        }
    }
}

/// See [`crate::micro::dots`].
///
/// # Safety
/// Every slice has length `k`; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn dots<const M: usize, T: Element>(
    k: usize,
    a: [&[f32]; M],
    b: [&[T]; DOTS],
    ahead: usize,
) -> [[f32; DOTS]; M] {
    let mut acc = [[_mm256_setzero_ps(); DOTS]; M];
    for p in (0..k).step_by(8) {
        let left = (k - p).min(8);
        let mask = first_lanes(left);
        let mut bv = [_mm256_setzero_ps(); DOTS];
        for (bv, b) in bv.iter_mut().zip(b) {
            let from = b.as_ptr().wrapping_add(p);
            *bv = if left == 8 {
                // SAFETY: eight elements from p on exist.
                unsafe { T::load8(from) }
            } else {
                // SAFETY: `left` elements from p on exist.
                unsafe { load_first(from, left) }
            };
            _mm_prefetch::<_MM_HINT_T0>(b.as_ptr().wrapping_add(p + ahead).cast());
        }
        for (acc, a) in acc.iter_mut().zip(a) {
            // SAFETY: as above.
            let av = unsafe { _mm256_maskload_ps(a.as_ptr().wrapping_add(p), mask) };
            for d in 0..DOTS {
                acc[d] = _mm256_fmadd_ps(av, bv[d], acc[d]);
            }
        }
    }
    let mut sums = [[0.0; DOTS]; M];
    for (sums, acc) in sums.iter_mut().zip(acc) {
        for (sum, acc) in sums.iter_mut().zip(acc) {
            let four = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps::<1>(acc));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            *sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
    }
    sums
}
