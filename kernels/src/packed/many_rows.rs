//! Products of many rows, rounded to 8 bits, with weights that are small integers.
//!
//! Small weights are packed as unsigned bytes, and several products of bytes are added up in 16 bits before they are
//! widened. Larger weights and the rows' numbers are widened to 16 bits first.

use std::arch::x86_64::*;

use super::Packed;
use super::blocks::{GROUP, Integers, SUPERBLOCK, each_group, pointers, prefetch};
use super::rounding::{Rounding, rounded};
use crate::operands::Bias;
use crate::scratch::{BYTES, FACTORS, with_scratch};
use crate::tasks::each_item;
use crate::view::{OutTile, View2};

/// Columns of a panel, which is the width of a register tile: two vectors of eight.
const COLUMNS: usize = 16;
/// Rows of a register tile.
const ROWS: usize = 6;
/// Bytes of a vector.
const VECTOR: usize = 32;
/// Maximum number of weights of a column in a panel, so that panels stay in the first-level cache.
const DEPTH: usize = 2 * SUPERBLOCK;

/// How the weights of a format are multiplied.
struct Layout<B>(B);

impl<B: Integers> Layout<B> {
    /// The largest weight, after the smallest possible one was subtracted.
    const MOST: i32 = B::RANGE.1 - B::RANGE.0;
    /// Whether a product of two pairs of bytes may not fit into 16 bits.
    const WIDE: bool = 2 * Self::MOST * 127 > i16::MAX as i32;
    /// Bytes per number.
    const SIZE: usize = if Self::WIDE { 2 } else { 1 };
    /// Numbers that are multiplied at once: those in 32 bits.
    const WIDTH: usize = 4 / Self::SIZE;
    /// Products that are added up before they are widened.
    const STEPS: usize = {
        let mut steps = B::RUN / Self::WIDTH;
        while !Self::WIDE && steps as i32 * 2 * Self::MOST * 127 > i16::MAX as i32 {
            steps /= 2;
        }
        steps
    };
    /// Subtracted from each weight.
    const LEAST: i32 = if Self::WIDE { 0 } else { B::RANGE.0 };
}

/// The form of rows that products with a format need.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowsForm {
    /// Numbers that share a scale of the weights.
    run: usize,
    /// Bytes per number.
    size: usize,
    /// What is subtracted from each weight.
    least: i32,
}

impl RowsForm {
    pub(crate) fn of<B: Integers>() -> Self {
        Self { run: B::RUN, size: Layout::<B>::SIZE, least: Layout::<B>::LEAST }
    }
}

/// Rounded rows, in tiles of [`ROWS`]. The last tile is filled up with zeros.
pub(crate) struct ManyRows {
    k: usize,
    form: RowsForm,
    /// Integers, `[tile, k / width, row, width]`, where `width` of them have 32 bits; little-endian.
    integers: Vec<u8>,
    /// For each run, the scale of the integers, `[tile, run, row]`.
    scales: Vec<f32>,
    /// Sums of rounded numbers, `[tile, run, row]`.
    sums: Vec<f32>,
    /// Sums of the integers times what is subtracted from each weight, `[tile, run, row]`.
    subtracted: Vec<i32>,
}

impl ManyRows {
    /// Rounds rows of whole blocks.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn new(a: View2, rounding: Rounding, form: RowsForm) -> Self {
        let (rows, k) = (a.rows(), a.cols());
        let (tiles, runs) = (rows.div_ceil(ROWS), k / form.run * ROWS);
        let bytes = ROWS * form.size * k;
        let integers = vec![0; tiles * bytes];
        let (scales, sums, subtracted) = (vec![0.0; tiles * runs], vec![0.0; tiles * runs], vec![0; tiles * runs]);
        let mut made = Self { k, form, integers, scales, sums, subtracted };
        let sums = made.sums.chunks_exact_mut(runs).zip(made.subtracted.chunks_exact_mut(runs));
        let factors = made.scales.chunks_exact_mut(runs).zip(sums);
        each_item(made.integers.chunks_exact_mut(bytes).zip(factors).enumerate(), |(tile, (integers, factors))| {
            let (scales, (sums, subtracted)) = factors;
            let mut to = RowTile { form, integers, scales, sums, subtracted };
            for row in 0..ROWS.min(rows - tile * ROWS) {
                let x = a.row(tile * ROWS + row, 0, k);
                match rounding.block {
                    SUPERBLOCK => to.round::<SUPERBLOCK>(row, x, rounding.half_sums),
                    _ => to.round::<GROUP>(row, x, rounding.half_sums),
                }
            }
        });
        made
    }

    /// `c = a · b (+ bias)` for the rows from `first` on.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn product<B: Integers>(&self, first: usize, b: Packed, bias: Bias, c: &mut OutTile) {
        let (m, n) = (c.rows(), c.cols());
        assert!(b.rows() == self.k && b.cols() == n && self.form == RowsForm::of::<B>());
        let factors = DEPTH / B::RUN * COLUMNS;
        with_scratch(&BYTES, DEPTH * COLUMNS * Layout::<B>::SIZE, |weights| {
            with_scratch(&FACTORS, 2 * factors, |both| {
                let (scales, minus) = both.split_at_mut(factors);
                // A missing column is replaced by the last one, and its result is dropped.
                let columns = |j: usize| -> [&[u8]; COLUMNS] { std::array::from_fn(|d| b.column((j + d).min(n - 1))) };
                for j in (0..n).step_by(COLUMNS) {
                    let cols = COLUMNS.min(n - j);
                    for p in (0..self.k).step_by(DEPTH) {
                        let depth = DEPTH.min(self.k - p);
                        pack::<B>(&columns(j), (p, depth), weights, scales, minus);
                        // Meanwhile, the next weights are read.
                        match p + depth {
                            end if end < self.k => fetch::<B>(columns(j), end),
                            _ => fetch::<B>(columns(j + cols), 0),
                        }
                        let panel = Panel { weights, scales, minus, depth };
                        let bias = bias.filter(|_| p == 0).map(|bias| &bias[j..j + cols]);
                        let mut c = c.reborrow().tile((0, m), (j, cols));
                        self.pass::<B>((first, p), &panel, bias, p > 0, &mut c);
                    }
                }
            });
        });
    }

    /// `c (+)= a · panel (+ bias)` for the rows from `first` on, and their numbers from `p` on.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pass<B: Integers>(&self, (first, p): (usize, usize), panel: &Panel, bias: Bias, adds: bool, c: &mut OutTile) {
        assert!(first.is_multiple_of(ROWS), "products start at whole tiles");
        let m = c.rows();
        for i in (0..m).step_by(ROWS) {
            let (rows, at, mut sums) = (ROWS.min(m - i), ((first + i) / ROWS, p), [[0.0; COLUMNS]; ROWS]);
            match rows {
                1 => self.tile::<B, 1>(at, panel, &mut sums),
                2 => self.tile::<B, 2>(at, panel, &mut sums),
                3 => self.tile::<B, 3>(at, panel, &mut sums),
                4 => self.tile::<B, 4>(at, panel, &mut sums),
                5 => self.tile::<B, 5>(at, panel, &mut sums),
                _ => self.tile::<B, ROWS>(at, panel, &mut sums),
            }
            for (r, sums) in sums[..rows].iter().enumerate() {
                let row = c.row_mut(i + r);
                match bias {
                    Some(bias) => row.iter_mut().zip(sums).zip(bias).for_each(|((c, sum), bias)| *c = sum + bias),
                    None if adds => row.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum),
                    None => row.copy_from_slice(&sums[..row.len()]),
                }
            }
        }
    }

    /// Products of the first `R` rows of a tile, from number `p` on, with a panel.
    #[allow(clippy::needless_range_loop)] // several arrays share the indices
    #[target_feature(enable = "avx2,fma")]
    fn tile<B: Integers, const R: usize>(
        &self,
        (tile, p): (usize, usize),
        panel: &Panel,
        to: &mut [[f32; COLUMNS]; ROWS],
    ) {
        let (size, width, steps) = (Layout::<B>::SIZE, Layout::<B>::WIDTH, Layout::<B>::STEPS);
        let runs = panel.depth / B::RUN;
        assert!(self.form == RowsForm::of::<B>() && p + panel.depth <= self.k);
        assert!(panel.weights.len() >= size * panel.depth * COLUMNS);
        assert!(panel.scales.len() >= runs * COLUMNS && panel.minus.len() >= runs * COLUMNS);
        let integers = &self.integers[(tile * self.k + p) * ROWS * size..][..panel.depth * ROWS * size];
        let at = (tile * self.k + p) / B::RUN * ROWS;
        let [scales, sums] = [&self.scales, &self.sums].map(|of| of[at..][..runs * ROWS].as_ptr());
        let subtracted = self.subtracted[at..][..runs * ROWS].as_ptr();
        let (mut weights, mut x) = (panel.weights.as_ptr(), integers.as_ptr());
        let mut totals = [[_mm256_setzero_ps(); 2]; R];
        for run in 0..runs {
            let mut whole = [[_mm256_setzero_si256(); 2]; R];
            if Layout::<B>::LEAST != 0 {
                for r in 0..R {
                    // SAFETY: a run of this tile, of which there are `runs`.
                    let sum = unsafe { *subtracted.wrapping_add(run * ROWS + r) };
                    whole[r] = [_mm256_set1_epi32(sum); 2];
                }
            }
            for _ in 0..B::RUN / width / steps {
                let mut part = [[_mm256_setzero_si256(); 2]; R];
                for _ in 0..steps {
                    // SAFETY: the panel has `size * depth / 4` times two vectors (asserted).
                    let b = unsafe { two_vectors(weights) };
                    for r in 0..R {
                        // SAFETY: 32 bits of the tile, which has `size * depth / 4` of each row.
                        let x = unsafe { x.wrapping_add(4 * r).cast::<i32>().read_unaligned() };
                        let x = _mm256_set1_epi32(x);
                        for half in 0..2 {
                            part[r][half] = match Layout::<B>::WIDE {
                                true => _mm256_add_epi32(part[r][half], _mm256_madd_epi16(b[half], x)),
                                false => _mm256_add_epi16(part[r][half], _mm256_maddubs_epi16(b[half], x)),
                            };
                        }
                    }
                    (weights, x) = (weights.wrapping_add(2 * VECTOR), x.wrapping_add(4 * ROWS));
                }
                for r in 0..R {
                    for half in 0..2 {
                        let widened = match Layout::<B>::WIDE {
                            true => part[r][half],
                            false => _mm256_madd_epi16(part[r][half], _mm256_set1_epi16(1)),
                        };
                        whole[r][half] = _mm256_add_epi32(whole[r][half], widened);
                    }
                }
            }
            // SAFETY: sixteen floats of a run (asserted).
            let of_columns = unsafe { floats(panel.scales.as_ptr().wrapping_add(run * COLUMNS)) };
            // SAFETY: as above.
            let minus = unsafe { floats(panel.minus.as_ptr().wrapping_add(run * COLUMNS)) };
            for r in 0..R {
                // SAFETY: a run of this tile.
                let scale = unsafe { *scales.wrapping_add(run * ROWS + r) };
                // SAFETY: as above.
                let sum = unsafe { *sums.wrapping_add(run * ROWS + r) };
                let (scale, sum) = (_mm256_set1_ps(scale), _mm256_set1_ps(sum));
                for half in 0..2 {
                    let (whole, by) = (_mm256_cvtepi32_ps(whole[r][half]), _mm256_mul_ps(of_columns[half], scale));
                    totals[r][half] = _mm256_fmadd_ps(whole, by, totals[r][half]);
                    if B::MINUS {
                        totals[r][half] = _mm256_fnmadd_ps(minus[half], sum, totals[r][half]);
                    }
                }
            }
        }
        for (to, totals) in to.iter_mut().zip(totals) {
            for (to, total) in to.as_chunks_mut::<8>().0.iter_mut().zip(totals) {
                // SAFETY: eight floats.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), total) };
            }
        }
    }
}

/// Loads two vectors.
///
/// # Safety
/// `from` points to 64 bytes.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::multiple_unsafe_ops_per_block)] // two loads
unsafe fn two_vectors(from: *const u8) -> [__m256i; 2] {
    // SAFETY: guaranteed by the contract.
    unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.wrapping_add(VECTOR).cast())] }
}

/// Loads sixteen floats.
///
/// # Safety
/// `from` points to sixteen floats.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::multiple_unsafe_ops_per_block)] // two loads
unsafe fn floats(from: *const f32) -> [__m256; 2] {
    // SAFETY: guaranteed by the contract.
    unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.wrapping_add(8))] }
}

/// Rows of a tile, as in [`ManyRows`].
struct RowTile<'a> {
    form: RowsForm,
    integers: &'a mut [u8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    subtracted: &'a mut [i32],
}

impl RowTile<'_> {
    /// Rounds row `row` of the tile, in blocks of `N`.
    #[inline(always)]
    fn round<const N: usize>(&mut self, row: usize, x: &[f32], half_sums: bool) {
        let mut runs = (row..).step_by(ROWS);
        for (x, to) in x.as_chunks::<N>().0.iter().zip(self.integers.chunks_exact_mut(ROWS * self.form.size * N)) {
            let made = rounded(x);
            for (run, at) in made.integers.chunks_exact(self.form.run).zip(&mut runs) {
                self.scales[at] = made.scale;
                self.sums[at] = made.sum(run, half_sums);
                self.subtracted[at] = self.form.least * run.iter().map(|x| i32::from(*x)).sum::<i32>();
            }
            let fours = to.as_chunks_mut::<4>().0.iter_mut().skip(row).step_by(ROWS);
            if self.form.size == 2 {
                for (to, x) in fours.zip(made.integers.as_chunks::<2>().0) {
                    let [low, high] = x.map(|x| i16::from(x).to_le_bytes());
                    *to = [low[0], low[1], high[0], high[1]];
                }
            } else {
                fours.zip(made.integers.as_chunks::<4>().0).for_each(|(to, x)| *to = x.map(|x| x as u8));
            }
        }
    }
}

/// Weights of sixteen columns.
struct Panel<'a> {
    /// The integers, `[pair, column, 2]` or, in bytes, `[quad, column, 4]`; little-endian.
    weights: &'a [u8],
    /// Scales, `[run, column]`.
    scales: &'a [f32],
    /// Offsets, `[run, column]`; unspecified if the format has none.
    minus: &'a [f32],
    /// Weights per column.
    depth: usize,
}

/// Prefetches the weights of a panel that starts at `p`.
#[inline(always)]
fn fetch<B: Integers>(columns: [&[u8]; COLUMNS], p: usize) {
    prefetch(pointers(columns), p / B::VALUES * B::BYTES, DEPTH / B::VALUES * B::BYTES);
}

/// Packs weights `p..p + depth` of sixteen columns into a [`Panel`].
#[allow(clippy::needless_range_loop)] // several arrays share the indices
#[target_feature(enable = "avx2,fma,f16c")]
fn pack<B: Integers>(
    columns: &[&[u8]; COLUMNS],
    (p, depth): (usize, usize),
    weights: &mut [u8],
    scales: &mut [f32],
    minus: &mut [f32],
) {
    let (runs, size) = (B::VALUES / B::RUN, Layout::<B>::SIZE);
    for number in 0..depth / B::VALUES {
        let at = (p / B::VALUES + number) * B::BYTES;
        let mut blocks = [columns[0]; COLUMNS];
        for d in 0..COLUMNS {
            blocks[d] = &columns[d][at..][..B::BYTES];
            let of_block = B::scales::<true>(blocks[d]);
            for run in 0..runs {
                let to = (number * runs + run) * COLUMNS + d;
                scales[to] = of_block.scale.as_ref()[run];
                if B::MINUS {
                    minus[to] = of_block.minus.as_ref()[run];
                }
            }
        }
        each_group!(B, G => {
            let first = (number * B::VALUES + G * GROUP) * COLUMNS * size;
            let to = &mut weights[first..][..GROUP * COLUMNS * size];
            for half in 0..2 {
                let mut eight = [_mm256_setzero_si256(); 8];
                for (d, eight) in eight.iter_mut().enumerate() {
                    // SAFETY: a whole block and a group of it; this function has the features.
                    let integers = unsafe { B::load::<G>(blocks[8 * half + d].as_ptr()) };
                    *eight = _mm256_sub_epi8(integers, _mm256_set1_epi8(Layout::<B>::LEAST as i8));
                }
                let mut store = |number: usize, vector: __m256i| {
                    let to = &mut to[(2 * number + half) * VECTOR..][..VECTOR];
                    // SAFETY: 32 bytes.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) };
                };
                // Iterators would not be inlined here, because their code lacks the CPU features.
                if Layout::<B>::WIDE {
                    let pairs = pairs(eight);
                    for i in 0..pairs.len() {
                        store(i, _mm256_cvtepi8_epi16(pairs[i]));
                    }
                } else {
                    let quads = quads(eight);
                    for i in 0..quads.len() {
                        store(i, quads[i]);
                    }
                }
            }
        });
    }
}

/// Transposes sixteen pairs of bytes of each of eight columns to the pairs of all columns.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(columns: [__m256i; 8]) -> [__m128i; 16] {
    // Pairs 0 to 3 and 8 to 11 of two columns, and pairs 4 to 7 and 12 to 15.
    let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    for (i, two) in columns.as_chunks::<2>().0.iter().enumerate() {
        low[i] = _mm256_unpacklo_epi16(two[0], two[1]);
        high[i] = _mm256_unpackhi_epi16(two[0], two[1]);
    }
    let mut pairs = [_mm_setzero_si128(); 16];
    for (first, [a, b, c, d]) in [(0, low), (4, high)] {
        let fours = [
            (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)),
            (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)),
        ];
        for (i, (left, right)) in fours.into_iter().enumerate() {
            for (pair, both) in [
                (first + 2 * i, _mm256_unpacklo_epi64(left, right)),
                (first + 2 * i + 1, _mm256_unpackhi_epi64(left, right)),
            ] {
                pairs[pair] = _mm256_castsi256_si128(both);
                pairs[pair + 8] = _mm256_extracti128_si256::<1>(both);
            }
        }
    }
    pairs
}

/// Transposes 8 × 8 quads: from one vector per column to one vector per index of a quad.
#[inline]
#[target_feature(enable = "avx2")]
fn quads(c: [__m256i; 8]) -> [__m256i; 8] {
    let mut fours = [_mm256_setzero_si256(); 8];
    for at in [0, 4] {
        let (a, b) = (_mm256_unpacklo_epi32(c[at], c[at + 1]), _mm256_unpackhi_epi32(c[at], c[at + 1]));
        let (c, d) = (_mm256_unpacklo_epi32(c[at + 2], c[at + 3]), _mm256_unpackhi_epi32(c[at + 2], c[at + 3]));
        // Quads 0 and 4, 1 and 5, 2 and 6, 3 and 7, of four columns.
        fours[at] = _mm256_unpacklo_epi64(a, c);
        fours[at + 1] = _mm256_unpackhi_epi64(a, c);
        fours[at + 2] = _mm256_unpacklo_epi64(b, d);
        fours[at + 3] = _mm256_unpackhi_epi64(b, d);
    }
    let mut quads = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        quads[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
        quads[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
    }
    quads
}
