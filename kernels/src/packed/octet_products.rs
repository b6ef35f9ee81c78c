//! Products of rows in octets with formats that have one scale per 32 integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::blocks::{prefetch, sum_of_lanes};
use super::few_rows::Dots;
use super::groups::{Groups, PAIRS};
use super::octets::Octet;

/// Bytes of a column that are prefetched ahead.
const AHEAD: usize = 4096;
/// Maximum number of bytes of an octet.
const MOST: usize = 512;

/// Dot products with columns of format `B`.
pub(crate) struct OctetProducts<B>(PhantomData<B>);

impl<B: Groups, const DIGITS: usize> Dots<Octet<DIGITS>> for OctetProducts<B> {
    #[allow(clippy::needless_range_loop)] // several arrays share the indices
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const M: usize>(a: [&[Octet<DIGITS>]; M], column: &[u8]) -> [f32; M] {
        const { assert!(B::RUN == 32 && (B::NARROW || DIGITS == 1)) }
        let bytes = const { B::BYTES * 256 / B::VALUES };
        // The last octet of a column that does not end with a whole one. Zeros of the row are multiplied by its rest.
        let mut last = [0; MOST];
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        for number in 0..a[0].len() {
            let at = a[0][number].number * bytes;
            let octet = match column[at..].get(..bytes) {
                Some(octet) => octet,
                None => {
                    let rest = &column[at..];
                    last[..rest.len()].copy_from_slice(rest);
                    &last[..bytes]
                }
            };
            prefetch([column.as_ptr()], at + AHEAD, bytes);
            // SAFETY: this function has the features.
            let of_weights = unsafe { B::octet_scales(octet) };
            let mut scales = [of_weights.scale; M];
            for r in 0..M {
                // SAFETY: eight floats.
                let of_row = unsafe { _mm256_loadu_ps(a[r][number].scales.as_ptr()) };
                scales[r] = _mm256_mul_ps(of_weights.scale, of_row);
                if B::MINUS {
                    // SAFETY: eight floats.
                    let sums = unsafe { _mm256_loadu_ps(a[r][number].sums.as_ptr()) };
                    totals[r][0] = _mm256_fnmadd_ps(of_weights.minus, sums, totals[r][0]);
                }
            }
            for pair in 0..PAIRS {
                // SAFETY: an octet and a pair of it; this function has the features.
                let weights = unsafe { B::pair(octet.as_ptr(), pair) };
                for r in 0..M {
                    let row = &a[r][number];
                    let mut whole = _mm256_setzero_si256();
                    for digits in &row.digits {
                        let first = digits[pair].as_ptr().cast::<__m256i>();
                        // SAFETY: 32 digits.
                        let x0 = unsafe { _mm256_load_si256(first) };
                        // SAFETY: the 32 digits that follow.
                        let x1 = unsafe { _mm256_load_si256(first.wrapping_add(1)) };
                        whole = _mm256_add_epi32(_mm256_slli_epi32::<8>(whole), sums_of_eight::<B>(weights, [x0, x1]));
                    }
                    if B::LEAST != 0 {
                        // SAFETY: eight integers.
                        let of_least = unsafe { _mm256_load_si256(row.of_least[pair].as_ptr().cast()) };
                        whole = _mm256_add_epi32(whole, of_least);
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
        // At most 4 * 31 * 128, so that no sum is clipped.
        let [first, second] = [_mm256_maddubs_epi16(weights[0], x[0]), _mm256_maddubs_epi16(weights[1], x[1])];
        return _mm256_madd_epi16(_mm256_add_epi16(first, second), ones);
    }
    // At most 2 * 128 * 127, because digits of rounded rows are at least -127.
    let pairs = |i: usize| _mm256_maddubs_epi16(_mm256_abs_epi8(weights[i]), _mm256_sign_epi8(x[i], weights[i]));
    _mm256_add_epi32(_mm256_madd_epi16(pairs(0), ones), _mm256_madd_epi16(pairs(1), ones))
}
