//! Products with packed matrices.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::blocks::each_group;
use super::blocks::{self, Blocks};
use super::{GROUP, Packed, with_blocks};
use crate::gemm::{Bias, multiply_packed};
use crate::gemv::MAX_ROWS;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::micro;
use crate::pack::{pack_b, packed_len};
use crate::scratch::{DECODED, PACKED, with_scratch};
use crate::view::{OutTile, View2};

/// `c = a · b (+ bias)` on the calling thread. Rows of `a` are contiguous.
pub(crate) fn tile(isa: Isa, a: View2, b: Packed, bias: Bias, c: OutTile) {
    if a.rows() <= MAX_ROWS {
        return with_blocks!(b.format(), B => columns::<B>(isa, a, b, bias, c));
    }
    decoded(isa, a, b, bias, c);
}

/// Many rows of A: blocks of B are decoded once and stay in the second-level cache while every row passes over them.
fn decoded(isa: Isa, a: View2, b: Packed, bias: Bias, mut c: OutTile) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    let shape = micro::shape(isa);
    let (kc, nc) = shape.block;
    for j in (0..n).step_by(nc) {
        let nc = nc.min(n - j);
        let bias = bias.map(|bias| &bias[j..j + nc]);
        let mut c = c.reborrow().tile((0, m), (j, nc));
        for p in (0..k).step_by(kc) {
            let kc = kc.min(k - p);
            with_scratch(&PACKED, packed_len(shape, kc, nc), |packed| {
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
                let a = a.block((0, m), (p, kc));
                // SAFETY: the tile's contract is this one's.
                let run = |rows, vectors, tile| unsafe { micro::run(isa, rows, vectors, tile) };
                multiply_packed(shape, a, packed, bias.filter(|_| p == 0), p > 0, &mut c, run);
            });
        }
    }
}

/// A few rows of A: dot products with a few columns at a time, which are decoded on the way.
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

/// Rows `i..i + M` of C, `C` columns at a time.
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
        // A missing column is replaced by the last one and its result dropped.
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
    assert!(a.iter().all(|a| columns.iter().all(|column| numbers(column) == a.len())), "a column of another length");
    match isa.level() {
        // SAFETY: the level proves the CPU features, the assertion the lengths.
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

/// Where each column begins.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pointers<const C: usize>(columns: [&[u8]; C]) -> [*const u8; C] {
    let mut first = [columns[0].as_ptr(); C];
    for d in 1..C {
        first[d] = columns[d].as_ptr();
    }
    first
}

/// # Safety
/// The columns have as many numbers as each slice; the CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_avx2<B: Blocks, const M: usize, const C: usize>(a: [&[f32]; M], columns: [&[u8]; C]) -> [[f32; C]; M] {
    let mut sums = [[_mm256_setzero_ps(); C]; M];
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    for number in 0..count {
        for first in first {
            for line in (0..B::BYTES).step_by(64) {
                // A hint: any address will do.
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(ahead + number * B::BYTES + line).cast());
            }
        }
        // SAFETY: a whole block of each column, which has so many (the contract).
        let block =
            |d: usize| unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) };
        let mut scales = [B::scales::<true>(block(0)); C];
        #[allow(clippy::needless_range_loop)] // an iterator that skips the first makes Q8_0 1.5 times as slow
        for d in 1..C {
            scales[d] = B::scales::<true>(block(d));
        }
        each_group!(B, G => {
            let p = number * B::VALUES + G * GROUP;
            for d in 0..C {
                // SAFETY: a whole block and a group of it; the contract's features.
                let numbers = unsafe { B::numbers8::<G>(block(d).as_ptr(), &scales[d]) };
                for (sums, a) in sums.iter_mut().zip(a) {
                    for (i, numbers) in numbers.into_iter().enumerate() {
                        // SAFETY: 8 of the 32 floats from `p` on, which the slice has.
                        let a = unsafe { _mm256_loadu_ps(a.as_ptr().wrapping_add(p + 8 * i)) };
                        sums[d] = _mm256_fmadd_ps(a, numbers, sums[d]);
                    }
                }
            }
        });
    }
    sums.map(|sums| {
        sums.map(|sums| {
            let mut lanes = [0.0; 8];
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums) };
            lanes.iter().sum()
        })
    })
}

/// # Safety
/// The columns have as many numbers as each slice; the CPU has AVX-512 F, VL, DQ and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")]
unsafe fn dots_avx512<B: Blocks, const M: usize, const C: usize>(a: [&[f32]; M], columns: [&[u8]; C]) -> [[f32; C]; M] {
    let mut sums = [[[_mm512_setzero_ps(); 2]; C]; M];
    let (count, first, ahead) = (columns[0].len() / B::BYTES, pointers(columns), C * columns[0].len());
    for number in 0..count {
        for first in first {
            for line in (0..B::BYTES).step_by(64) {
                // A hint: any address will do.
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(ahead + number * B::BYTES + line).cast());
            }
        }
        // SAFETY: a whole block of each column, which has so many (the contract).
        let block =
            |d: usize| unsafe { std::slice::from_raw_parts(first[d].wrapping_add(number * B::BYTES), B::BYTES) };
        let mut scales = [B::scales::<true>(block(0)); C];
        #[allow(clippy::needless_range_loop)] // an iterator that skips the first makes Q8_0 1.5 times as slow
        for d in 1..C {
            scales[d] = B::scales::<true>(block(d));
        }
        each_group!(B, G => {
            let p = number * B::VALUES + G * GROUP;
            for d in 0..C {
                // SAFETY: a whole block and a group of it; the contract's features.
                let numbers = unsafe { B::numbers16::<G>(block(d).as_ptr(), &scales[d]) };
                for (sums, a) in sums.iter_mut().zip(a) {
                    for (i, numbers) in numbers.into_iter().enumerate() {
                        // SAFETY: 16 of the 32 floats from `p` on, which the slice has.
                        let a = unsafe { _mm512_loadu_ps(a.as_ptr().wrapping_add(p + 16 * i)) };
                        sums[d][i] = _mm512_fmadd_ps(a, numbers, sums[d][i]);
                    }
                }
            }
        });
    }
    let mut totals = [[0.0; C]; M];
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, [low, high]) in totals.iter_mut().zip(sums) {
            *total = _mm512_reduce_add_ps(_mm512_add_ps(low, high));
        }
    }
    totals
}
