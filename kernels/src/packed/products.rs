//! Products with block-quantized matrices.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::blocks::{self, Blocks};
#[cfg(target_arch = "x86_64")]
use super::blocks::{GROUP, each_group, pointers, prefetch, sum_of_lanes};
use super::rounding::{Rounded, Rounding, rounded};
#[cfg(target_arch = "x86_64")]
use super::{Inputs, Kind};
use super::{Packed, with_blocks};
use crate::gemv::MAX_ROWS;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::micro;
use crate::operands::{Bias, check};
use crate::pack::pack_b;
use crate::panels::in_panels;
use crate::scratch::{DECODED, with_scratch};
use crate::tasks::each_item;
use crate::view::{OutTile, View2};

/// `c = a · b (+ bias)` on the calling thread.
///
/// # Panics
/// As for [`gemm()`](crate::gemm::gemm).
pub(crate) fn tile(isa: Isa, a: View2, b: Packed, bias: Bias, mut c: OutTile) {
    check(a, (b.rows(), b.cols()), bias, &c);
    #[cfg(target_arch = "x86_64")]
    {
        let done = match b.inputs {
            Some((inputs, first)) => inputs.product(first, b, bias, &mut c),
            None => Kind::of(isa, a.rows(), &b).is_some_and(|kind| Inputs::new(a, kind).product(0, b, bias, &mut c)),
        };
        if done {
            return;
        }
    }
    if let Some(rounding) = b.rounding() {
        let (k, rounded) = (a.cols(), rounded_rows(a, rounding));
        tile(isa, View2::row_major(&rounded, a.rows(), k), b.exact(), bias, c.reborrow());
        if rounding.half_sums {
            with_blocks!(b.format(), B => subtract_errors_of_sums::<B>(a, b, &mut c));
        }
        return;
    }
    if a.rows() <= MAX_ROWS {
        return with_blocks!(b.format(), B => columns::<B>(isa, a, b, bias, c));
    }
    decoded(isa, a, b, bias, c);
}

/// The rows of A, rounded.
pub(crate) fn rounded_rows(a: View2, rounding: Rounding) -> Vec<f32> {
    let k = a.cols();
    let mut rounded = vec![0.0; a.rows() * k];
    each_item(rounded.chunks_mut(k.max(1)).enumerate(), |(i, to)| rounding.round(a.row(i, 0, k), to));
    rounded
}

/// Formats with a minimum per block of 32 values multiply it by sums rounded to 16 bits. For a C that was computed with
/// exact sums, subtracts the effect of that rounding.
fn subtract_errors_of_sums<B: Blocks>(a: View2, b: Packed, c: &mut OutTile) {
    let errors_of = |i: usize| {
        let blocks = a.row(i, 0, a.cols()).as_chunks::<32>().0.iter();
        let error = |block: Rounded<32>| block.sum(&block.integers, true) - block.sum(&block.integers, false);
        blocks.map(rounded).map(error).collect()
    };
    let errors: Vec<Vec<f32>> = (0..a.rows()).map(errors_of).collect();
    for j in 0..b.cols() {
        let minus_of = |block: &[u8]| B::scales::<false>(block).minus.as_ref()[0];
        let minus: Vec<f32> = b.column(j).chunks_exact(B::BYTES).map(minus_of).collect();
        for (i, errors) in errors.iter().enumerate() {
            c.row_mut(i)[j] -= errors.iter().zip(&minus).map(|(error, minus)| error * minus).sum::<f32>();
        }
    }
}

/// For many rows of A: decodes blocks of B as they are packed.
fn decoded(isa: Isa, a: View2, b: Packed, bias: Bias, c: OutTile) {
    let shape = micro::shape(isa);
    let pack = |(p, kc): (usize, usize), (j, nc): (usize, usize), packed: &mut [f32]| {
        for first in (0..nc).step_by(shape.cols) {
            let cols = shape.cols.min(nc - first);
            with_scratch(&DECODED, cols * kc, |rows| {
                for (i, row) in rows.chunks_exact_mut(kc).enumerate() {
                    let column = b.column(j + first + i);
                    with_blocks!(b.format(), B => blocks::decode::<B>(isa, column, p, row));
                }
                pack_b(isa, shape, View2::row_major(rows, cols, kc).t(), &mut packed[first * kc..]);
            });
        }
    };
    // SAFETY: `in_panels` upholds the contract of `Tile`.
    let run = |rows, vectors, tile| unsafe { micro::run(isa, rows, vectors, tile) };
    in_panels(shape, a, bias, c, pack, run);
}

/// For a few rows of A: dot products with a few columns at a time, which are decoded on the fly.
fn columns<B: Blocks>(isa: Isa, a: View2, b: Packed, bias: Bias, mut c: OutTile) {
    for i in (0..a.rows()).step_by(4) {
        match a.rows() - i {
            1 => of_rows::<B, 1, 4>(isa, a, i, b, bias, &mut c),
            2 => of_rows::<B, 2, 4>(isa, a, i, b, bias, &mut c),
            3 => of_rows::<B, 3, 2>(isa, a, i, b, bias, &mut c),
            _ => of_rows::<B, 4, 2>(isa, a, i, b, bias, &mut c),
        }
    }
}

/// Computes rows `i..i + M` of C, `C` columns at a time.
fn of_rows<B: Blocks, const M: usize, const C: usize>(
    isa: Isa,
    a: View2,
    i: usize,
    b: Packed,
    bias: Bias,
    c: &mut OutTile,
) {
    let (k, n) = (a.cols(), b.cols());
    let a: [&[f32]; M] = std::array::from_fn(|r| a.row(i + r, 0, k));
    for j in (0..n).step_by(C) {
        let width = C.min(n - j);
        // A missing column is replaced by the last one, and its result is dropped.
        let sums = dots::<B, M, C>(isa, a, std::array::from_fn(|d| b.column(j + d.min(width - 1))));
        for (r, sums) in sums.iter().enumerate() {
            for (d, (c, sum)) in c.row_mut(i + r)[j..j + width].iter_mut().zip(sums).enumerate() {
                *c = sum + bias.map_or(0.0, |bias| bias[j + d]);
            }
        }
    }
}

/// The dot products of `M` slices with `C` columns.
fn dots<B: Blocks, const M: usize, const C: usize>(isa: Isa, a: [&[f32]; M], columns: [&[u8]; C]) -> [[f32; C]; M] {
    let numbers = |column: &&[u8]| column.len() / B::BYTES * B::VALUES;
    assert!(a.iter().all(|a| columns.iter().all(|column| numbers(column) == a.len())), "a column has the wrong length");
    match isa.level() {
        // SAFETY: the level proves the CPU features, and the assertion proves the lengths.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { dots_avx512::<B, M, C>(a, columns) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { dots_avx2::<B, M, C>(a, columns) },
        _ => {
            let mut sums = [[0.0; C]; M];
            for (d, column) in columns.into_iter().enumerate() {
                dots_portable::<B, M>(isa, a, column).into_iter().zip(&mut sums).for_each(|(sum, sums)| sums[d] = sum);
            }
            sums
        }
    }
}

fn dots_portable<B: Blocks, const M: usize>(isa: Isa, a: [&[f32]; M], column: &[u8]) -> [f32; M] {
    const LANES: usize = 8;
    let mut numbers = [0.0; 256];
    let numbers = &mut numbers[..B::VALUES];
    let mut sums = [[0.0; LANES]; M];
    for (p, block) in column.chunks_exact(B::BYTES).enumerate() {
        blocks::decode::<B>(isa, block, 0, numbers);
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = &a[p * B::VALUES..][..B::VALUES];
            for (a, b) in a.as_chunks::<LANES>().0.iter().zip(numbers.as_chunks::<LANES>().0) {
                (0..LANES).for_each(|lane| sums[lane] += a[lane] * b[lane]);
            }
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// Defines the dot products of `M` slices with `C` columns for some CPU features. A group is several vectors of
/// `$width` floats, which are added to `$sums` accumulators per slice and column in turn.
#[cfg(target_arch = "x86_64")]
macro_rules! dots {
    (
        $name:ident, $features:literal, $numbers:ident of $width:literal in $sums:literal,
        $zero:ident, $load:ident, $multiply_add:ident, $of:ident => $total:expr
    ) => {
        /// # Safety
        /// Each column has as many values as each slice; the CPU has the features.
        #[target_feature(enable = $features)]
        #[allow(clippy::modulo_one)] // where there is one sum
        unsafe fn $name<B: Blocks, const M: usize, const C: usize>(
            a: [&[f32]; M],
            columns: [&[u8]; C],
        ) -> [[f32; C]; M] {
            let mut sums = [[[$zero(); $sums]; C]; M];
            let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
            for number in 0..count {
                prefetch(first, ahead + number * B::BYTES, B::BYTES);
                let block = |d: usize| {
                    // SAFETY: `number` is less than the number of whole blocks in each column (the contract).
                    unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) }
                };
                let mut scales = [B::scales::<true>(block(0)); C];
                #[allow(clippy::needless_range_loop)] // an iterator that skips the first makes Q8_0 1.5 times as slow
                for d in 1..C {
                    scales[d] = B::scales::<true>(block(d));
                }
                each_group!(B, G => {
                    let p = number * B::VALUES + G * GROUP;
                    for d in 0..C {
                        // SAFETY: a whole block and a group of it; the contract guarantees the features.
                        let numbers = unsafe { B::$numbers::<G>(block(d).as_ptr(), &scales[d]) };
                        for (sums, a) in sums.iter_mut().zip(a) {
                            for (i, numbers) in numbers.into_iter().enumerate() {
                                // SAFETY: `$width` of the 32 floats from `p` on, which the slice has.
                                let a = unsafe { $load(a.as_ptr().wrapping_add(p + $width * i)) };
                                sums[d][i % $sums] = $multiply_add(a, numbers, sums[d][i % $sums]);
                            }
                        }
                    }
                });
            }
            let mut totals = [[0.0; C]; M];
            for (totals, sums) in totals.iter_mut().zip(sums) {
                for (total, $of) in totals.iter_mut().zip(sums) {
                    *total = $total;
                }
            }
            totals
        }
    };
}
#[cfg(target_arch = "x86_64")]
dots!(
    dots_avx2, "avx2,fma,f16c", numbers8 of 8 in 1,
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_fmadd_ps,
    // SAFETY: the contract guarantees AVX2.
    sums => unsafe { sum_of_lanes(sums[0]) }
);
#[cfg(target_arch = "x86_64")]
dots!(
    dots_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c", numbers16 of 16 in 2,
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps,
    sums => _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]))
);
