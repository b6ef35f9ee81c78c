//! Products of a few rows, rounded to 8 bits, with weights that are small integers.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::Packed;
use super::blocks::{GROUP, Integers, each_group, pointers};
use super::rounding::{Rounded, rounded};
use crate::isa::{Isa, Level};
use crate::operands::Bias;
use crate::scratch::{BYTES, SUMS, with_scratch};
use crate::view::{OutTile, View2};

/// A rounded row.
#[derive(Clone, Copy)]
struct Row<'s> {
    integers: &'s [i8],
    /// One per block.
    scales: &'s [f32],
    /// Sums of the rounded values, per run.
    sums: &'s [f32],
}

/// `c = a · b (+ bias)` for at most [`MAX_ROWS`](crate::gemv::MAX_ROWS) rows, which are rounded. Returns `false` if the
/// CPU lacks the instructions.
pub(crate) fn rows<B: Integers>(isa: Isa, a: View2, b: Packed, bias: Bias, c: &mut OutTile) -> bool {
    if isa.level() < Level::Avx2 {
        return false;
    }
    let (m, k) = (a.rows(), a.cols());
    let half_sums = b.rounding().is_some_and(|rounding| rounding.half_sums);
    let runs = if B::MINUS { k / B::RUN } else { 0 };
    with_scratch(&BYTES, m * k, |integers| {
        with_scratch(&SUMS, m * (k / B::VALUES + runs), |numbers| {
            let (scales, sums) = numbers.split_at_mut(m * (k / B::VALUES));
            for i in 0..m {
                let integers = &mut integers[i * k..][..k];
                let scales = &mut scales[i * (k / B::VALUES)..][..k / B::VALUES];
                // SAFETY: the level proves the CPU features.
                unsafe { round_row::<B>(a.row(i, 0, k), integers, scales, &mut sums[i * runs..][..runs], half_sums) };
            }
            let row = |i: usize| Row {
                integers: &integers[i * k..][..k],
                scales: &scales[i * (k / B::VALUES)..][..k / B::VALUES],
                sums: &sums[i * runs..][..runs],
            };
            for i in (0..m).step_by(4) {
                match m - i {
                    1 => of_rows::<B, 1, 4>([row(i)], i, b, bias, c),
                    2 => of_rows::<B, 2, 2>(from_fn(|r| row(i + r)), i, b, bias, c),
                    3 => of_rows::<B, 3, 2>(from_fn(|r| row(i + r)), i, b, bias, c),
                    _ => of_rows::<B, 4, 2>(from_fn(|r| row(i + r)), i, b, bias, c),
                }
            }
            true
        })
    })
}

/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_row<B: Integers>(
    x: &[f32],
    integers: &mut [i8],
    scales: &mut [f32],
    sums: &mut [f32],
    half_sums: bool,
) {
    match B::VALUES {
        256 => round_blocks::<256>(x, integers, scales, |_, _| ()),
        _ => round_blocks::<32>(x, integers, scales, |block, rounded| {
            if let Some(sum) = sums.get_mut(block) {
                *sum = rounded.sum(half_sums);
            }
        }),
    }
    if B::VALUES == 256 {
        for (run, (sum, integers)) in sums.iter_mut().zip(integers.chunks_exact(B::RUN)).enumerate() {
            let total: i32 = integers.iter().map(|integer| i32::from(*integer)).sum();
            *sum = scales[run * B::RUN / B::VALUES] * total as f32;
        }
    }
}

#[inline(always)]
fn round_blocks<const N: usize>(
    x: &[f32],
    to: &mut [i8],
    scales: &mut [f32],
    mut each: impl FnMut(usize, &Rounded<N>),
) {
    let blocks = x.as_chunks::<N>().0.iter().zip(to.as_chunks_mut::<N>().0).zip(scales);
    for (block, ((x, to), scale)) in blocks.enumerate() {
        let made = rounded(x);
        (*to, *scale) = (made.integers, made.scale);
        each(block, &made);
    }
}

/// Computes rows `i..i + M` of C, `C` columns at a time.
fn of_rows<B: Integers, const M: usize, const C: usize>(a: [Row; M], i: usize, b: Packed, bias: Bias, c: &mut OutTile) {
    let n = b.cols();
    for j in (0..n).step_by(C) {
        let width = C.min(n - j);
        // A missing column is replaced by the last one, and its result is dropped.
        let columns: [&[u8]; C] = from_fn(|d| b.column(j + d.min(width - 1)));
        let values = |column: &&[u8]| column.len() / B::BYTES * B::VALUES;
        assert!(a.iter().all(|a| columns.iter().all(|column| values(column) == a.integers.len())));
        // SAFETY: the caller checked the level, which proves the CPU features, and the assertion proves the lengths.
        let dots = unsafe { dots::<B, M, C>(a, columns) };
        for (r, dots) in dots.iter().enumerate() {
            for (d, (c, dot)) in c.row_mut(i + r)[j..j + width].iter_mut().zip(dots).enumerate() {
                *c = dot + bias.map_or(0.0, |bias| bias[j + d]);
            }
        }
    }
}

/// The dot products of `M` rounded rows with `C` columns.
///
/// # Safety
/// Each column has as many values as each row; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<B: Integers, const M: usize, const C: usize>(a: [Row; M], columns: [&[u8]; C]) -> [[f32; C]; M] {
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    let runs = B::VALUES / B::RUN;
    let mut sums = [[_mm256_setzero_ps(); C]; M];
    let mut minus = [[_mm256_setzero_ps(); C]; M];
    let mut minus_of_small = [[0.0; C]; M];
    for number in 0..count {
        for first in first {
            for line in (0..B::BYTES).step_by(64) {
                // A hint: any address will do.
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(ahead + number * B::BYTES + line).cast());
            }
        }
        let block = |d: usize| {
            // SAFETY: `number` is less than the number of whole blocks in each column (the contract).
            unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) }
        };
        let mut scales = [B::scales::<true>(block(0)); C];
        #[allow(clippy::needless_range_loop)] // as in `products`
        for d in 1..C {
            scales[d] = B::scales::<true>(block(d));
        }
        // Sums of the block, without the rows' scales.
        let mut of_block = [[_mm256_setzero_ps(); C]; M];
        each_group!(B, G => {
            for d in 0..C {
                // SAFETY: a whole block and a group of it; the contract guarantees the features.
                let weights = unsafe { B::load::<G>(block(d).as_ptr()) };
                let magnitudes = if B::UNSIGNED { weights } else { _mm256_abs_epi8(weights) };
                let scale = scales[d].scale.as_ref();
                let scale = if B::RUN == GROUP {
                    _mm256_set1_ps(scale[G])
                } else {
                    _mm256_set_m128(_mm_set1_ps(scale[2 * G + 1]), _mm_set1_ps(scale[2 * G]))
                };
                for r in 0..M {
                    let from = a[r].integers.as_ptr().wrapping_add(number * B::VALUES + G * GROUP);
                    // SAFETY: the row has this group (the contract).
                    let x = unsafe { _mm256_loadu_si256(from.cast()) };
                    let x = if B::UNSIGNED { x } else { _mm256_sign_epi8(x, weights) };
                    // At most 2 * 128 * 127, so that no sum is clipped.
                    let pairs = _mm256_maddubs_epi16(magnitudes, x);
                    let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    of_block[r][d] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(fours), scale, of_block[r][d]);
                }
            }
        });
        for r in 0..M {
            let scale = _mm256_set1_ps(a[r].scales[number]);
            for d in 0..C {
                sums[r][d] = _mm256_fmadd_ps(of_block[r][d], scale, sums[r][d]);
                if B::MINUS {
                    let of_runs = &a[r].sums[number * runs..][..runs];
                    let of = scales[d].minus.as_ref();
                    for (of, sums) in of.as_chunks::<8>().0.iter().zip(of_runs.as_chunks::<8>().0) {
                        // SAFETY: eight floats. A closure given to `map` would not be inlined here, because `map` lacks
                        // the CPU features.
                        let eight = |x: &[f32; 8]| unsafe { _mm256_loadu_ps(x.as_ptr()) };
                        minus[r][d] = _mm256_fmadd_ps(eight(of), eight(sums), minus[r][d]);
                    }
                    if runs == 1 {
                        minus_of_small[r][d] += of[0] * of_runs[0];
                    }
                }
            }
        }
    }
    let total = |vector| {
        let mut lanes = [0.0; 8];
        // SAFETY: eight floats.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), vector) };
        lanes.iter().sum::<f32>()
    };
    from_fn(|r| from_fn(|d| total(sums[r][d]) - total(minus[r][d]) - minus_of_small[r][d]))
}
