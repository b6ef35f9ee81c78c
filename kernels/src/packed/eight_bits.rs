//! Products of one row, rounded to 8 bits, with weights of 8 bits. For long columns, reading four columns at once is
//! faster than reading one at a time in chunks.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::Packed;
use super::blocks::{GROUP, Integers, pointers, prefetch, sum_of_lanes};
use super::rounding::rounded;
use crate::operands::Bias;

/// Columns per set of dot products.
const COLUMNS: usize = 4;

/// A rounded row, in groups of 32.
pub(crate) struct EightBits {
    groups: Vec<Group>,
    /// The scale of each group.
    scales: Vec<f32>,
    /// The sum of each group's rounded values.
    sums: Vec<f32>,
}

/// 32 rounded values.
#[repr(align(32))]
struct Group([i8; GROUP]);

impl EightBits {
    /// Converts a row of whole groups.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn new(x: &[f32]) -> Self {
        let count = x.len() / GROUP;
        let mut row = Self {
            groups: Vec::with_capacity(count),
            scales: Vec::with_capacity(count),
            sums: Vec::with_capacity(count),
        };
        for x in x.as_chunks::<GROUP>().0 {
            let group = rounded(x);
            row.scales.push(group.scale);
            row.sums.push(group.sum(&group.integers, false));
            row.groups.push(Group(group.integers));
        }
        row
    }
}

/// `c = a · b (+ bias)` for one row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn one_row<B: Integers>(a: &EightBits, b: Packed, bias: Bias, c: &mut [f32]) {
    for (number, c) in c.chunks_mut(COLUMNS).enumerate() {
        let first = COLUMNS * number;
        // A missing column is replaced by the last one, and its result is dropped.
        let columns: [&[u8]; COLUMNS] = from_fn(|d| b.column(first + d.min(c.len() - 1)));
        assert!(columns.iter().all(|column| column.len() / B::BYTES == a.groups.len()));
        // SAFETY: the assertion proves the lengths.
        let dots = unsafe { dots::<B, COLUMNS>(a, columns) };
        for (d, (c, dot)) in c.iter_mut().zip(dots).enumerate() {
            *c = dot + bias.map_or(0.0, |bias| bias[first + d]);
        }
    }
}

/// The dot products of a row with `C` columns.
///
/// # Safety
/// Each column has as many blocks as the row has groups.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<B: Integers, const C: usize>(a: &EightBits, columns: [&[u8]; C]) -> [f32; C] {
    const { assert!(B::VALUES == GROUP && B::RUN == GROUP, "a block has one scale") }
    let (first, ahead) = (pointers(columns), C * columns[0].len());
    let mut sums = [_mm256_setzero_ps(); C];
    let mut minus = [0.0; C];
    for (number, group) in a.groups.iter().enumerate() {
        prefetch(first, ahead + number * B::BYTES, B::BYTES);
        // SAFETY: 32 values, aligned to 32 bytes.
        let x = unsafe { _mm256_load_si256(group.0.as_ptr().cast()) };
        for d in 0..C {
            // SAFETY: `number` is less than the number of whole blocks in each column (the contract).
            let block = unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) };
            let scales = B::scales::<true>(block);
            // SAFETY: a whole block; this function has the features.
            let weights = unsafe { B::load::<0>(block.as_ptr()) };
            // At most 2 * 128 * 127, so no sum saturates.
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
            let fours = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            let scale = _mm256_set1_ps(scales.scale.as_ref()[0] * a.scales[number]);
            sums[d] = _mm256_fmadd_ps(fours, scale, sums[d]);
            if B::MINUS {
                minus[d] += scales.minus.as_ref()[0] * a.sums[number];
            }
        }
    }
    let mut dots = [0.0; C];
    for d in 0..C {
        // SAFETY: this function has AVX2.
        dots[d] = unsafe { sum_of_lanes(sums[d]) } - minus[d];
    }
    dots
}
