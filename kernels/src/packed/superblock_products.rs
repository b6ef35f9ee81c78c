//! Products of rows of digits with superblocks, computed in integers within each superblock.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::blocks::{GROUP, Scales, each_group, prefetch, sum_of_lanes};
use super::digits::Part;
use super::few_rows::{AHEAD, Dots};
use super::superblocks::Superblocks;

/// Dot products with columns of format `B`.
pub(crate) struct SuperblockProducts<B>(PhantomData<B>);

impl<B: Superblocks, const DIGITS: usize> Dots<Part<DIGITS>> for SuperblockProducts<B> {
    #[allow(clippy::needless_range_loop)] // several arrays share the indices
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const M: usize>(a: [&[Part<DIGITS>]; M], column: &[u8]) -> [f32; M] {
        let mut totals = [_mm256_setzero_ps(); M];
        let mut of_several_parts = [0.0; M];
        for number in 0..a[0].len() {
            let at = a[0][number].block * B::BYTES;
            let block = &column[at..][..B::BYTES];
            prefetch([column.as_ptr()], at + AHEAD, B::BYTES);
            // SAFETY: a whole block; this function has the features.
            let scales = unsafe { B::run_scales(block) };
            let mut sums = [[_mm256_setzero_si256(); DIGITS]; M];
            each_group!(B, G => {
                // SAFETY: a whole block and a group of it; this function has the features.
                let weights = unsafe { B::unsigned::<G>(block.as_ptr()) };
                // The scale of the group's first run in the lower half, and of its second run in the upper half.
                let scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(0x0100 + 0x0202 * G as i16));
                for r in 0..M {
                    for digit in 0..DIGITS {
                        let x = &a[r][number].digits[digit][GROUP * G..][..GROUP];
                        // SAFETY: 32 digits.
                        let x = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
                        // At most 2 * 63 * 128, so no sum saturates.
                        let pairs = _mm256_maddubs_epi16(weights, x);
                        sums[r][digit] = _mm256_add_epi32(sums[r][digit], _mm256_madd_epi16(pairs, scale));
                    }
                }
            });
            // SAFETY: a whole block; this function has the features.
            let minimums = unsafe { B::run_minimums(block) };
            let factors = B::factors(block);
            for r in 0..M {
                let part = &a[r][number];
                let mut minus = [_mm256_setzero_si256(); DIGITS];
                for digit in 0..DIGITS {
                    // SAFETY: sixteen integers of 16 bits.
                    let of_runs = unsafe { _mm256_loadu_si256(part.digit_sums[digit].as_ptr().cast()) };
                    if B::RANGE.0 != 0 {
                        let offset =
                            _mm256_mullo_epi32(_mm256_madd_epi16(of_runs, scales), _mm256_set1_epi32(B::RANGE.0));
                        sums[r][digit] = _mm256_add_epi32(sums[r][digit], offset);
                    }
                    minus[digit] = _mm256_madd_epi16(of_runs, minimums);
                }
                if (B::MINUS || B::RANGE.0 != 0) && !part.only {
                    let difference = exact_difference(sums[r], minus, factors);
                    of_several_parts[r] += f64::from(part.unit) * difference;
                    continue;
                }
                let mut total = _mm256_mul_ps(whole(sums[r]), _mm256_set1_ps(factors.scale));
                if B::MINUS {
                    total = _mm256_fnmadd_ps(whole(minus), _mm256_set1_ps(factors.minus), total);
                }
                totals[r] = _mm256_fmadd_ps(total, _mm256_set1_ps(part.unit), totals[r]);
            }
        }
        let mut dots = [0.0; M];
        for r in 0..M {
            // SAFETY: this function has AVX2.
            dots[r] = unsafe { sum_of_lanes(totals[r]) } + of_several_parts[r] as f32;
        }
        dots
    }
}

/// Numbers with these digits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn whole<const DIGITS: usize>(digits: [__m256i; DIGITS]) -> __m256 {
    let mut whole = _mm256_cvtepi32_ps(digits[0]);
    for digit in &digits[1..] {
        whole = _mm256_fmadd_ps(whole, _mm256_set1_ps(256.0), _mm256_cvtepi32_ps(*digit));
    }
    whole
}

/// The sum of scaled integers minus the sum of scaled minimums. In a superblock of several parts, a large value may be
/// multiplied by a weight near zero. Then the scaled integer cancels with its minimum, or, in another lane, with the
/// correction for the subtracted minimum, so none of them may be rounded to `f32`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn exact_difference<const DIGITS: usize>(
    sums: [__m256i; DIGITS],
    minus: [__m256i; DIGITS],
    factors: Scales<f32>,
) -> f64 {
    let mut difference = _mm256_setzero_pd();
    for (digits, factor) in [(sums, factors.scale), (minus, -factors.minus)] {
        let mut total = _mm256_setzero_pd();
        for digit in digits {
            let halves = (_mm256_castsi256_si128(digit), _mm256_extracti128_si256::<1>(digit));
            let both = _mm256_add_pd(_mm256_cvtepi32_pd(halves.0), _mm256_cvtepi32_pd(halves.1));
            total = _mm256_fmadd_pd(total, _mm256_set1_pd(256.0), both);
        }
        difference = _mm256_fmadd_pd(total, _mm256_set1_pd(factor.into()), difference);
    }
    let two = _mm_add_pd(_mm256_castpd256_pd128(difference), _mm256_extractf128_pd::<1>(difference));
    _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
}
