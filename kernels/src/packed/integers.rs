//! Products of one row with weights that are small integers, in integer arithmetic. Converting weights to floats takes
//! longer than reading them from memory; widening them to 16 bits takes about half as long.

use std::arch::x86_64::*;

use super::Packed;
use super::blocks::{GROUP, Integers, each_group, pointers, prefetch, sum_of_lanes};
use super::planes::{LOW, Planes};
use crate::operands::Bias;

/// Columns per set of dot products.
const COLUMNS: usize = 4;

/// `c = a · b (+ bias)` for one row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn one_row<B: Integers>(a: &Planes, b: Packed, bias: Bias, c: &mut [f32]) {
    for (number, c) in c.chunks_mut(COLUMNS).enumerate() {
        let first = COLUMNS * number;
        // A missing column is replaced by the last one, and its result is dropped.
        let columns: [&[u8]; COLUMNS] = std::array::from_fn(|d| b.column(first + d.min(c.len() - 1)));
        let groups = |column: &[u8]| column.len() / B::BYTES * (B::VALUES / GROUP);
        assert!(columns.iter().all(|column| groups(column) == a.groups.len()));
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
/// Each column has as many values as the row.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<B: Integers, const C: usize>(a: &Planes, columns: [&[u8]; C]) -> [f32; C] {
    const { assert!(B::RUN == GROUP, "a group has one scale") }
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    let mut sums = [_mm256_setzero_ps(); C];
    let mut minus = [0.0; C];
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
            let parts = a.groups.as_ptr().wrapping_add(number * (B::VALUES / GROUP) + G).cast::<i16>();
            // SAFETY: the row has this group, with 32 parts in each plane (the contract). Closures given to `map` would
            // not be inlined here, because `map` lacks the CPU features.
            let part = |at: usize| unsafe { _mm256_load_si256(parts.wrapping_add(at).cast()) };
            let (high, low) = ([part(0), part(16)], [part(GROUP), part(GROUP + 16)]);
            for d in 0..C {
                // SAFETY: a whole block and a group of it; this function has the features.
                let weights = unsafe { B::load::<G>(block(d).as_ptr()) };
                let halves = [
                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128(weights)),
                    _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(weights)),
                ];
                let products = |parts: [__m256i; 2]| {
                    let (first, second) = (_mm256_madd_epi16(halves[0], parts[0]), _mm256_madd_epi16(halves[1], parts[1]));
                    _mm256_cvtepi32_ps(_mm256_add_epi32(first, second))
                };
                let whole = _mm256_fmadd_ps(products(high), _mm256_set1_ps((1 << LOW) as f32), products(low));
                sums[d] = _mm256_fmadd_ps(whole, _mm256_set1_ps(scales[d].scale.as_ref()[G]), sums[d]);
                if B::MINUS {
                    minus[d] += scales[d].minus.as_ref()[G] * a.sums[number * (B::VALUES / GROUP) + G];
                }
            }
        });
    }
    let mut dots = [0.0; C];
    for d in 0..C {
        // SAFETY: this function has AVX2.
        dots[d] = unsafe { sum_of_lanes(sums[d]) } * a.unit - minus[d];
    }
    dots
}
