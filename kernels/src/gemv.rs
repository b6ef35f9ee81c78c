//! Products with few rows of A. They are bound by reading B once, so B is read in place, without packing.

use crate::element::Element;
use crate::isa::{Isa, multiversion};
use crate::micro::{dot_rows, dots};
use crate::micro_tile::DOTS;
use crate::operands::Bias;
use crate::view::{OutTile, View2};

/// Maximum number of rows of A for which B is not packed.
pub(crate) const MAX_ROWS: usize = 8;

/// Rows of B combined in one pass over C.
const DEPTH: usize = 8;

/// `c[m, n] = a[m, k] · b[k, n] (+ bias[n])` where rows of `b` are contiguous.
pub(crate) fn rows<T: Element>(isa: Isa, a: View2, b: View2<T>, bias: Bias, mut c: OutTile) {
    fill(&mut c, bias);
    add_rows(isa, a, b, c);
}

/// Initializes every row with the bias, or zero.
pub(crate) fn fill(c: &mut OutTile, bias: Bias) {
    for i in 0..c.rows() {
        match bias {
            Some(bias) => c.row_mut(i).copy_from_slice(bias),
            None => c.row_mut(i).fill(0.0),
        }
    }
}

multiversion! {
    /// `c[m, n] += a[m, k] · b[k, n]` where rows of `b` are contiguous: every row of C accumulates eight scaled rows
    /// of B at a time.
    fn add_rows<T: Element>(a: View2, b: View2<T>, c: OutTile) = add_rows_body
}

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    crate::math::fma::<FMA>(a, b, c)
}

#[inline(always)]
fn add_rows_body<const FMA: bool, T: Element>(a: View2, b: View2<T>, mut c: OutTile) {
    let (k, n) = (b.rows(), b.cols());
    let mut p = 0;
    while p + DEPTH <= k {
        let b: [&[T]; DEPTH] = std::array::from_fn(|d| b.row(p + d, 0, n));
        for i in 0..c.rows() {
            if let Some(a) = a.row(i, p, DEPTH).first_chunk() {
                add_eight::<FMA, T>(c.row_mut(i), a, b);
            }
        }
        p += DEPTH;
    }
    for p in p..k {
        for i in 0..c.rows() {
            let a = a.at(i, p);
            for (c, &b) in c.row_mut(i).iter_mut().zip(b.row(p, 0, n)) {
                *c = fma::<FMA>(a, b.widened(), *c);
            }
        }
    }
}

/// `c[j] += Σ_d a[d] * b[d][j]`.
#[inline(always)]
fn add_eight<const FMA: bool, T: Element>(c: &mut [f32], a: &[f32; DEPTH], b: [&[T]; DEPTH]) {
    let n = c.len();
    let b: [&[T]; DEPTH] = std::array::from_fn(|d| &b[d][..n]);
    for j in 0..n {
        let (mut even, mut odd) = (c[j], 0.0);
        for d in (0..DEPTH).step_by(2) {
            even = fma::<FMA>(a[d], b[d][j].widened(), even);
            odd = fma::<FMA>(a[d + 1], b[d + 1][j].widened(), odd);
        }
        c[j] = even + odd;
    }
}

/// `c[m, n] = a[m, k] · b[k, n] (+ bias[n])` where columns of `b` are
/// contiguous: dot products with four columns at a time.
pub(crate) fn columns<T: Element>(isa: Isa, a: View2, b: View2<T>, bias: Bias, mut c: OutTile) {
    let (k, n) = (b.rows(), b.cols());
    let b = b.t();
    let ahead = DOTS * b.row_stride();
    for j in (0..n).step_by(DOTS) {
        let width = DOTS.min(n - j);
        // A missing column is replaced by the last one, and its result is dropped.
        let columns: [&[T]; DOTS] = std::array::from_fn(|d| b.row(j + d.min(width - 1), 0, k));
        let mut store = |i: usize, sums: &[f32; DOTS]| {
            let c = &mut c.row_mut(i)[j..j + width];
            for (d, (c, sum)) in c.iter_mut().zip(sums).enumerate() {
                *c = sum + bias.map_or(0.0, |bias| bias[j + d]);
            }
        };
        let mut i = 0;
        while i < a.rows() {
            match (a.rows() - i).min(dot_rows(isa)) {
                4 => group::<4, T>(isa, a, i, columns, ahead, &mut store),
                3 => group::<3, T>(isa, a, i, columns, ahead, &mut store),
                2 => group::<2, T>(isa, a, i, columns, ahead, &mut store),
                _ => group::<1, T>(isa, a, i, columns, ahead, &mut store),
            }
            i += dot_rows(isa);
        }
    }
}

/// Stores the dot products of rows `i..i + M` of `a` with `columns`.
fn group<const M: usize, T: Element>(
    isa: Isa,
    a: View2,
    i: usize,
    columns: [&[T]; DOTS],
    ahead: usize,
    store: &mut impl FnMut(usize, &[f32; DOTS]),
) {
    let a: [&[f32]; M] = std::array::from_fn(|r| a.row(i + r, 0, columns[0].len()));
    for (r, sums) in dots(isa, columns[0].len(), a, columns, ahead).iter().enumerate() {
        store(i + r, sums);
    }
}
