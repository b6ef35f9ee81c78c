//! Products of rows in chunks with block formats that have one scale per 32 integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::blocks::{GROUP, SUPERBLOCK, prefetch, sum_of_lanes};
use super::chunks::Chunk;
use super::few_rows::{AHEAD, Dots, Piece};
use super::groups::{Groups, PAIRS};

/// Maximum number of bytes of a column's chunk.
const MAX_BYTES: usize = 320;

/// Dot products with columns of format `B`.
pub(crate) struct ChunkProducts<B>(PhantomData<B>);

impl<B: Groups, const DIGITS: usize> Dots<Chunk<DIGITS>> for ChunkProducts<B> {
    #[allow(clippy::needless_range_loop)] // several arrays share the indices
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const M: usize>(a: [&[Chunk<DIGITS>]; M], column: &[u8]) -> [f32; M] {
        const { assert!(B::RUN == GROUP && (B::NARROW || DIGITS == 1)) }
        let bytes = const { B::BYTES * SUPERBLOCK / B::VALUES };
        const { assert!(B::BYTES * SUPERBLOCK / B::VALUES <= MAX_BYTES) }
        let mut last;
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        for number in 0..a[0].len() {
            let at = a[0][number].number() * bytes;
            let chunk = match column[at..].get(..bytes) {
                Some(chunk) => chunk,
                None => {
                    // The zeros with which the row is padded are multiplied by zeros.
                    let rest = &column[at..];
                    last = [0; MAX_BYTES];
                    last[..rest.len()].copy_from_slice(rest);
                    &last[..bytes]
                }
            };
            prefetch([column.as_ptr()], at + AHEAD, bytes);
            // SAFETY: this function has the features.
            let weight_scales = unsafe { B::chunk_scales(chunk) };
            let mut scales = [weight_scales.scale; M];
            for r in 0..M {
                // SAFETY: eight floats.
                let row_scales = unsafe { _mm256_loadu_ps(a[r][number].scales.as_ptr()) };
                scales[r] = _mm256_mul_ps(weight_scales.scale, row_scales);
                if B::MINUS {
                    // SAFETY: eight floats.
                    let sums = unsafe { _mm256_loadu_ps(a[r][number].sums.as_ptr()) };
                    totals[r][0] = _mm256_fnmadd_ps(weight_scales.minus, sums, totals[r][0]);
                }
            }
            for pair in 0..PAIRS {
                // SAFETY: a chunk and one of its pairs; this function has the features.
                let weights = unsafe { B::pair(chunk.as_ptr(), pair) };
                for r in 0..M {
                    let row = &a[r][number];
                    let mut whole = _mm256_setzero_si256();
                    for digits in &row.digits {
                        let first = digits[pair].as_ptr().cast::<__m256i>();
                        // SAFETY: 32 digits. The arrays of a chunk, which is aligned, are multiples of 32 bytes.
                        let x0 = unsafe { _mm256_load_si256(first) };
                        // SAFETY: the 32 digits that follow, aligned as well.
                        let x1 = unsafe { _mm256_load_si256(first.wrapping_add(1)) };
                        whole = _mm256_add_epi32(_mm256_slli_epi32::<8>(whole), sums_of_eight::<B>(weights, [x0, x1]));
                    }
                    if B::OFFSET != 0 {
                        // SAFETY: eight integers, aligned as the digits.
                        let products = unsafe { _mm256_load_si256(row.offset_products[pair].as_ptr().cast()) };
                        whole = _mm256_add_epi32(whole, products);
                    }
                    // In each half, the scale of that half's group.
                    let scale = _mm256_permutevar_ps(scales[r], _mm256_set1_epi32(pair as i32));
                    totals[r][pair % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, totals[r][pair % 2]);
                }
            }
        }
        let mut dots = [0.0; M];
        for r in 0..M {
            let total = _mm256_add_ps(totals[r][0], totals[r][1]);
            // SAFETY: this function has AVX2.
            dots[r] = unsafe { sum_of_lanes(total) };
        }
        dots
    }
}

/// Multiplies the integers of a pair of groups by digits, and adds up eight products at a time, all of the same group.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_eight<B: Groups>(weights: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    if B::NARROW {
        // At most 4 * 31 * 128, so no sum saturates.
        let [first, second] = [_mm256_maddubs_epi16(weights[0], x[0]), _mm256_maddubs_epi16(weights[1], x[1])];
        return _mm256_madd_epi16(_mm256_add_epi16(first, second), ones);
    }
    // At most 2 * 128 * 127, because digits of rounded rows are at least -127.
    let pairs = |i: usize| _mm256_maddubs_epi16(_mm256_abs_epi8(weights[i]), _mm256_sign_epi8(x[i], weights[i]));
    _mm256_add_epi32(_mm256_madd_epi16(pairs(0), ones), _mm256_madd_epi16(pairs(1), ones))
}
