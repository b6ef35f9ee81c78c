//! Products of rows in chunks with block formats that have one scale per 32 integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::blocks::{GROUP, prefetch, sum_of_lanes};
use super::chunks::Chunk;
use super::few_rows::{AHEAD, Dots, Piece};
use super::groups::{Groups, each_pair};

/// Maximum number of bytes of a column's chunk.
const MAX_BYTES: usize = 320;

/// Dot products with columns of format `B`.
pub(crate) struct ChunkProducts<B>(PhantomData<B>);

impl<B: Groups, const DIGITS: usize> Dots<Chunk<DIGITS>> for ChunkProducts<B> {
    #[allow(clippy::needless_range_loop)] // several arrays share the indices
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const M: usize>(a: [&[Chunk<DIGITS>]; M], column: &[u8]) -> [f32; M] {
        const { assert!(B::RUN == GROUP && (B::NARROW || DIGITS == 1)) }
        const { assert!(B::CHUNK_BYTES <= MAX_BYTES) }
        let mut last = None;
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        // Of formats with minimums, chunks that cover the same values as others are multiplied afterwards.
        let count = match a[0].last() {
            Some(last) if B::MINUS && !last.only => a[0].partition_point(|chunk| chunk.only),
            _ => a[0].len(),
        };
        for number in 0..count {
            let at = a[0][number].number() * B::CHUNK_BYTES;
            let chunk = chunk_at::<B>(column, at, &mut last);
            prefetch([column.as_ptr()], at + AHEAD, B::CHUNK_BYTES);
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
            each_pair!(P => {
                // SAFETY: a chunk and one of its pairs; this function has the features.
                let weights = unsafe { B::pair::<P>(chunk.as_ptr()) };
                for r in 0..M {
                    let whole = products_of_pair::<B, DIGITS>(weights, &a[r][number], P);
                    // In each half, the scale of that half's group.
                    let scale = _mm256_permutevar_ps(scales[r], _mm256_set1_epi32(P as i32));
                    totals[r][P % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, totals[r][P % 2]);
                }
            });
        }
        let mut dots = [0.0; M];
        for r in 0..M {
            let total = _mm256_add_ps(totals[r][0], totals[r][1]);
            // SAFETY: this function has AVX2.
            dots[r] = unsafe { sum_of_lanes(total) };
            if B::MINUS && count < a[r].len() {
                dots[r] += of_several_parts::<B, DIGITS>(&a[r][count..], column);
            }
        }
        dots
    }
}

/// The column's chunk at this byte. The last chunk may be incomplete; it is padded with zeros, in `last`, because the
/// row is padded with zeros, too.
#[inline(always)]
fn chunk_at<'c, B: Groups>(column: &'c [u8], at: usize, last: &'c mut Option<[u8; MAX_BYTES]>) -> &'c [u8] {
    let rest = &column[at..];
    rest.get(..B::CHUNK_BYTES).unwrap_or_else(|| {
        let last = last.insert([0; MAX_BYTES]);
        last[..rest.len()].copy_from_slice(rest);
        &last[..B::CHUNK_BYTES]
    })
}

/// The dot product with chunks of a row that cover the same values as others. There, a large value may be multiplied
/// by a weight near zero, so that its product with the weight's integer cancels with its product with the minimum.
/// Therefore, multiples of the scale are first moved from the minimum to the integer, exactly: of a weight near zero,
/// only a fraction of the scale is left.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_several_parts<B: Groups, const DIGITS: usize>(row: &[Chunk<DIGITS>], column: &[u8]) -> f32 {
    let (mut totals, mut last) = ([_mm256_setzero_ps(); 2], None);
    for parts in row.chunk_by(|a, b| a.number() == b.number()) {
        let chunk = chunk_at::<B>(column, parts[0].number() * B::CHUNK_BYTES, &mut last);
        // SAFETY: this function has the features.
        let weights = unsafe { B::chunk_scales(chunk) };
        // The number of scales in the minimum, but no more than the largest integer; also if the scale is 0.
        let most = _mm256_set1_ps(B::RANGE.1 as f32);
        let moved = _mm256_min_ps(_mm256_div_ps(weights.minus, weights.scale), most);
        let moved = _mm256_cvtps_epi32(_mm256_max_ps(moved, _mm256_setzero_ps()));
        let left = _mm256_fnmadd_ps(weights.scale, _mm256_cvtepi32_ps(moved), weights.minus);
        each_pair!(P => {
            // SAFETY: a chunk and one of its pairs; this function has the features.
            let integers = unsafe { B::pair::<P>(chunk.as_ptr()) };
            // In each half, what belongs to that half's group.
            let of_pair = |all: __m256| _mm256_permutevar_ps(all, _mm256_set1_epi32(P as i32));
            let (scale, left) = (of_pair(weights.scale), of_pair(left));
            let moved = _mm256_castps_si256(of_pair(_mm256_castsi256_ps(moved)));
            for part in parts {
                // SAFETY: eight floats.
                let unit = of_pair(unsafe { _mm256_loadu_ps(part.scales.as_ptr()) });
                // SAFETY: eight integers, aligned as the digits.
                let sums = unsafe { _mm256_load_si256(part.sums_of_eight[P].as_ptr().cast()) };
                let whole = products_of_pair::<B, DIGITS>(integers, part, P);
                let whole = _mm256_sub_epi32(whole, _mm256_mullo_epi32(sums, moved));
                let product = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale);
                let product = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sums), left, product);
                totals[P % 2] = _mm256_fmadd_ps(product, unit, totals[P % 2]);
            }
        });
    }
    let total = _mm256_add_ps(totals[0], totals[1]);
    // SAFETY: this function has AVX2.
    unsafe { sum_of_lanes(total) }
}

/// Multiplies a pair's integers by a row, and adds up eight products at a time: four sums for the first group, then
/// four for the second.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of_pair<B: Groups, const DIGITS: usize>(
    weights: [__m256i; 2],
    row: &Chunk<DIGITS>,
    pair: usize,
) -> __m256i {
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
        let products = unsafe { _mm256_load_si256(row.sums_of_eight[pair].as_ptr().cast()) };
        whole = _mm256_add_epi32(whole, products);
    }
    whole
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
