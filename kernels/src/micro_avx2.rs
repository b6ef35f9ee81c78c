//! AVX2+FMA kernels. Register tile: up to 6 rows × 2 vectors of 8 (12 accumulators, 2
//! vectors of B and one broadcast of A fit the 16 registers).

use crate::micro::{DOTS, Tile, by_shape};
use std::arch::x86_64::*;

/// See [`crate::micro::run`].
///
/// # Safety
/// The contract of [`Tile`], `1 <= rows <= 6`, and a CPU with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn run(rows: usize, vectors: usize, tile: Tile) {
    // SAFETY: forwarded contract.
    unsafe { by_shape!(kernel(tile), rows, vectors, [1 2 3 4 5 6], [1 2]) }
}

/// The mask of the first `count` lanes (all eight when there are more).
#[target_feature(enable = "avx2")]
fn first_lanes(count: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
}

/// # Safety
/// As for [`run`], with `rows == M` and `vectors == V`.
#[target_feature(enable = "avx2,fma")]
unsafe fn kernel<const M: usize, const V: usize>(t: Tile) {
    let mut acc = [[_mm256_setzero_ps(); V]; M];
    let mut b = t.b;
    // SAFETY: by the contract of `Tile`, row i < M of A has k floats and the
    // panel has k groups of V vectors.
    unsafe {
        for p in 0..t.k {
            let mut bv = [_mm256_setzero_ps(); V];
            for (v, bv) in bv.iter_mut().enumerate() {
                *bv = _mm256_loadu_ps(b.add(v * 8));
                if t.ahead > 0 {
                    _mm_prefetch::<_MM_HINT_T1>(b.wrapping_add(v * 8 + t.ahead).cast());
                }
            }
            b = b.wrapping_add(t.ldb);
            for (i, acc) in acc.iter_mut().enumerate() {
                let av = _mm256_set1_ps(*t.a.add(i * t.lda + p));
                for v in 0..V {
                    acc[v] = _mm256_fmadd_ps(av, bv[v], acc[v]);
                }
            }
        }
    }
    // Lanes of each vector that exist in C.
    let mut mask = [first_lanes(8); V];
    mask[V - 1] = first_lanes(t.cols - (V - 1) * 8);
    // SAFETY: only the `cols` existing columns of M rows of C (and of the bias)
    // are touched: masked-off lanes are neither read nor written.
    unsafe {
        if !t.bias.is_null() {
            for v in 0..V {
                let bias = _mm256_maskload_ps(t.bias.add(v * 8), mask[v]);
                for acc in &mut acc {
                    acc[v] = _mm256_add_ps(acc[v], bias);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, &sum) in acc.iter().enumerate() {
                let c = t.c.add(i * t.ldc + v * 8);
                let sum = if t.accumulate { _mm256_add_ps(sum, _mm256_maskload_ps(c, mask[v])) } else { sum };
                if v + 1 == V {
                    _mm256_maskstore_ps(c, mask[v], sum);
                } else {
                    _mm256_storeu_ps(c, sum);
                }
            }
        }
    }
}

/// See [`crate::micro::dots`].
///
/// # Safety
/// Every slice has length `k`; the CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn dots<const M: usize>(
    k: usize,
    a: [&[f32]; M],
    b: [&[f32]; DOTS],
    ahead: usize,
) -> [[f32; DOTS]; M] {
    let mut acc = [[_mm256_setzero_ps(); DOTS]; M];
    for p in (0..k).step_by(8) {
        let mask = first_lanes((k - p).min(8));
        let mut bv = [_mm256_setzero_ps(); DOTS];
        for (bv, b) in bv.iter_mut().zip(b) {
            // SAFETY: only elements p.. that exist are read.
            *bv = unsafe { _mm256_maskload_ps(b.as_ptr().add(p), mask) };
            _mm_prefetch::<_MM_HINT_T0>(b.as_ptr().wrapping_add(p + ahead).cast());
        }
        for (acc, a) in acc.iter_mut().zip(a) {
            // SAFETY: as above.
            let av = unsafe { _mm256_maskload_ps(a.as_ptr().add(p), mask) };
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
