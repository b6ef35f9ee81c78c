//! Products of a few rows, rounded to 8 bits, with weights that are small integers.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::Packed;
use super::blocks::{GROUP, Integers, SUPERBLOCK, each_group, pointers, prefetch, sum_of_lanes};
use super::rounding::{Rounding, rounded};
use crate::operands::Bias;
use crate::view::OutTile;

/// A rounded row.
#[derive(Default)]
pub(crate) struct EightBits {
    groups: Vec<Group>,
    /// One scale per block of the rounding, which has 32 or 256 values.
    scales: Vec<f32>,
    /// Sums of the rounded values, per group.
    sums: Vec<f32>,
}

/// 32 rounded values.
#[derive(Clone)]
#[repr(align(32))]
struct Group([i8; GROUP]);

impl EightBits {
    /// Converts a row of whole blocks.
    #[inline(always)]
    pub(crate) fn new(x: &[f32], rounding: Rounding) -> Self {
        let mut row = Self { groups: vec![Group([0; GROUP]); x.len() / GROUP], scales: Vec::new(), sums: Vec::new() };
        match rounding.block {
            SUPERBLOCK => row.round::<SUPERBLOCK>(x, rounding.half_sums),
            _ => row.round::<GROUP>(x, rounding.half_sums),
        }
        row
    }

    #[inline(always)]
    fn round<const N: usize>(&mut self, x: &[f32], half_sums: bool) {
        for (x, groups) in x.as_chunks::<N>().0.iter().zip(self.groups.chunks_exact_mut(N / GROUP)) {
            let made = rounded(x);
            self.scales.push(made.scale);
            for (from, to) in made.integers.as_chunks::<GROUP>().0.iter().zip(groups) {
                to.0 = *from;
                self.sums.push(made.sum(from, half_sums));
            }
        }
    }
}

/// `c = a · b (+ bias)`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rows<B: Integers>(a: &[EightBits], b: Packed, bias: Bias, c: &mut OutTile) {
    for i in (0..a.len()).step_by(4) {
        match a.len() - i {
            1 => few_rows::<B, 1, 4>([&a[i]], i, b, bias, c),
            2 => few_rows::<B, 2, 2>(from_fn(|r| &a[i + r]), i, b, bias, c),
            3 => few_rows::<B, 3, 2>(from_fn(|r| &a[i + r]), i, b, bias, c),
            _ => few_rows::<B, 4, 2>(from_fn(|r| &a[i + r]), i, b, bias, c),
        }
    }
}

/// Computes rows `i..i + M` of C, `C` columns at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn few_rows<B: Integers, const M: usize, const C: usize>(
    a: [&EightBits; M],
    i: usize,
    b: Packed,
    bias: Bias,
    c: &mut OutTile,
) {
    let n = b.cols();
    for j in (0..n).step_by(C) {
        let width = C.min(n - j);
        // A missing column is replaced by the last one, and its result is dropped.
        let columns: [&[u8]; C] = from_fn(|d| b.column(j + d.min(width - 1)));
        let fits = |a: &EightBits, column: &[u8]| {
            let blocks = column.len() / B::BYTES;
            a.groups.len() == blocks * (B::VALUES / GROUP) && a.scales.len() == blocks
        };
        assert!(a.iter().all(|a| columns.iter().all(|column| fits(a, column))));
        // SAFETY: the assertion proves the lengths.
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
/// Each column has as many values as each row, with a scale per block.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<B: Integers, const M: usize, const C: usize>(a: [&EightBits; M], columns: [&[u8]; C]) -> [[f32; C]; M] {
    const { assert!(B::RUN == GROUP, "a group has one scale") }
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    let mut sums = [[_mm256_setzero_ps(); C]; M];
    let mut minus = [[0.0; C]; M];
    for number in 0..count {
        prefetch(first, ahead + number * B::BYTES, B::BYTES);
        let block = |d: usize| {
            // SAFETY: `number` is less than the number of whole blocks in each column (the contract).
            unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) }
        };
        let mut scales = [B::scales::<true>(block(0)); C];
        #[allow(clippy::needless_range_loop)] // as in `products`
        for d in 1..C {
            scales[d] = B::scales::<true>(block(d));
        }
        each_group!(B, G => {
            let group = number * (B::VALUES / GROUP) + G;
            for d in 0..C {
                // SAFETY: a whole block and a group of it; this function has the features.
                let weights = unsafe { B::load::<G>(block(d).as_ptr()) };
                let magnitudes = if B::RANGE.0 == 0 { weights } else { _mm256_abs_epi8(weights) };
                let (scale, of_minus) = (scales[d].scale.as_ref()[G], scales[d].minus.as_ref()[G]);
                for r in 0..M {
                    let from = a[r].groups.as_ptr().wrapping_add(group);
                    // SAFETY: the row has this group (the contract).
                    let x = unsafe { _mm256_load_si256(from.cast()) };
                    // SAFETY: the row has a scale for this block (the contract).
                    let of_row = unsafe { *a[r].scales.get_unchecked(number) };
                    let x = if B::RANGE.0 == 0 { x } else { _mm256_sign_epi8(x, weights) };
                    // At most 2 * 128 * 127, so that no sum is clipped.
                    let pairs = _mm256_maddubs_epi16(magnitudes, x);
                    let fours = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                    sums[r][d] = _mm256_fmadd_ps(fours, _mm256_set1_ps(scale * of_row), sums[r][d]);
                    if B::MINUS {
                        minus[r][d] += of_minus * a[r].sums[group];
                    }
                }
            }
        });
    }
    let mut dots = [[0.0; C]; M];
    for r in 0..M {
        for d in 0..C {
            // SAFETY: this function has AVX2.
            dots[r][d] = unsafe { sum_of_lanes(sums[r][d]) } - minus[r][d];
        }
    }
    dots
}
