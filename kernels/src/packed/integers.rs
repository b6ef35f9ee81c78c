//! Products of one row with weights that are small integers, in integer arithmetic. Converting weights to floats takes
//! longer than reading them from memory; widening them to 16 bits takes about half as long.

use std::arch::x86_64::*;

use super::Packed;
use super::blocks::{GROUP, Integers, each_group, pointers};
use super::planes::{LOW, Planes, parts_len};
use crate::isa::{Isa, Level};
use crate::operands::Bias;
use crate::scratch::{PARTS, SUMS, with_scratch};

/// Columns per set of dot products.
const COLUMNS: usize = 4;

/// `c = a · b (+ bias)` for one row. Returns whether it was computed: only AVX2 gains from it, since AVX-512 looks up
/// the floats of several weights at once, and not every row can be converted to integers.
pub(crate) fn one_row<B: Integers>(isa: Isa, a: &[f32], b: Packed, bias: Bias, c: &mut [f32]) -> bool {
    if isa.level() != Level::Avx2 {
        return false;
    }
    let sums = if B::MINUS { a.len() / B::RUN } else { 0 };
    with_scratch(&PARTS, parts_len(a.len()), |parts| {
        with_scratch(&SUMS, sums, |sums| {
            // SAFETY: the level proves the CPU features.
            let Some(a) = (unsafe { Planes::new(a, parts, sums) }) else { return false };
            for (number, c) in c.chunks_mut(COLUMNS).enumerate() {
                let first = COLUMNS * number;
                // A missing column is replaced by the last one, and its result is dropped.
                let columns: [&[u8]; COLUMNS] = std::array::from_fn(|d| b.column(first + d.min(c.len() - 1)));
                assert!(columns.iter().all(|column| column.len() / B::BYTES * B::VALUES * 2 == a.parts.len()));
                // SAFETY: the level proves the CPU features, and the assertion proves the lengths.
                let dots = unsafe { dots::<B, COLUMNS>(&a, columns) };
                for (d, (c, dot)) in c.iter_mut().zip(dots).enumerate() {
                    *c = dot + bias.map_or(0.0, |bias| bias[first + d]);
                }
            }
            true
        })
    })
}

/// The dot products of a row with `C` columns.
///
/// # Safety
/// Each column has as many values as the row; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<B: Integers, const C: usize>(a: &Planes, columns: [&[u8]; C]) -> [f32; C] {
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    let mut sums = [_mm256_setzero_ps(); C];
    let mut minus = [_mm256_setzero_ps(); C];
    let mut minus_of_small = [0.0; C];
    let runs = B::VALUES / B::RUN;
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
        each_group!(B, G => {
            let parts = a.parts.as_ptr().wrapping_add(2 * (number * B::VALUES + G * GROUP));
            // SAFETY: the row has this group, with 32 parts in each plane (the contract). Closures given to `map` would
            // not be inlined here, because `map` lacks the CPU features.
            let part = |at: usize| unsafe { _mm256_loadu_si256(parts.wrapping_add(at).cast()) };
            let (high, low) = ([part(0), part(16)], [part(GROUP), part(GROUP + 16)]);
            for d in 0..C {
                // SAFETY: a whole block and a group of it; the contract guarantees the features.
                let weights = unsafe { B::load::<G>(block(d).as_ptr()) };
                let halves = [
                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128(weights)),
                    _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(weights)),
                ];
                let products = |parts: [__m256i; 2]| {
                    [_mm256_madd_epi16(halves[0], parts[0]), _mm256_madd_epi16(halves[1], parts[1])]
                };
                let (high, low) = (products(high), products(low));
                let whole = |high, low| {
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps((1 << LOW) as f32), _mm256_cvtepi32_ps(low))
                };
                let scale = scales[d].scale.as_ref();
                if B::RUN == GROUP {
                    let both = |parts: [__m256i; 2]| _mm256_add_epi32(parts[0], parts[1]);
                    sums[d] = _mm256_fmadd_ps(whole(both(high), both(low)), _mm256_set1_ps(scale[G]), sums[d]);
                } else {
                    for half in 0..2 {
                        let scale = _mm256_set1_ps(scale[2 * G + half]);
                        sums[d] = _mm256_fmadd_ps(whole(high[half], low[half]), scale, sums[d]);
                    }
                }
            }
        });
        if B::MINUS {
            for d in 0..C {
                let of_block = &a.sums[number * runs..][..runs];
                for (of, sums) in scales[d].minus.as_ref().as_chunks::<8>().0.iter().zip(of_block.as_chunks::<8>().0) {
                    // SAFETY: eight floats.
                    let eight = |x: &[f32; 8]| unsafe { _mm256_loadu_ps(x.as_ptr()) };
                    minus[d] = _mm256_fmadd_ps(eight(of), eight(sums), minus[d]);
                }
                if runs == 1 {
                    minus_of_small[d] += scales[d].minus.as_ref()[0] * of_block[0];
                }
            }
        }
    }
    std::array::from_fn(|d| {
        let total = |vector| {
            let mut lanes = [0.0; 8];
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), vector) };
            lanes.iter().sum::<f32>()
        };
        total(sums[d]) * a.unit - total(minus[d]) - minus_of_small[d]
    })
}
