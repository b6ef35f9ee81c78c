//! Products of a few converted rows with quantized weights: dot products with one column at a time.

use std::ops::Range;

use super::Packed;
use crate::operands::Bias;
use crate::view::OutTile;

/// Bytes of a column that are prefetched ahead.
pub(crate) const AHEAD: usize = 4096;
/// Columns that stay in the first-level cache while all rows pass over them.
const COLUMNS: usize = 8;

/// A piece of a row.
pub(crate) trait Piece {
    /// Index of the values that the piece covers.
    fn number(&self) -> usize;
}

/// Dot products of rows, in pieces of type `T`, with columns of a block format.
pub(crate) trait Dots<T> {
    /// The dot products of `M` rows, whose pieces cover the same values, with a column.
    ///
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    unsafe fn dots<const M: usize>(a: [&[T]; M], column: &[u8]) -> [f32; M];
}

/// `c = a · b (+ bias)`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rows<D: Dots<T>, T: Piece>(a: &[Vec<T>], b: Packed, bias: Bias, c: &mut OutTile) {
    for first in (0..b.cols()).step_by(COLUMNS) {
        let columns = first..b.cols().min(first + COLUMNS);
        for (i, a) in a.chunks(4).enumerate() {
            let at = (4 * i, columns.clone());
            match a {
                [a] => few_rows::<D, T, 1>([a], at, b, bias, c),
                [a0, a1] => few_rows::<D, T, 2>([a0, a1], at, b, bias, c),
                [a0, a1, a2] => few_rows::<D, T, 3>([a0, a1, a2], at, b, bias, c),
                [a0, a1, a2, a3, ..] => few_rows::<D, T, 4>([a0, a1, a2, a3], at, b, bias, c),
                [] => {}
            }
        }
    }
}

/// Computes rows `i..i + M` of some columns of C.
#[target_feature(enable = "avx2,fma,f16c")]
fn few_rows<D: Dots<T>, T: Piece, const M: usize>(
    a: [&[T]; M],
    (i, columns): (usize, Range<usize>),
    b: Packed,
    bias: Bias,
    c: &mut OutTile,
) {
    let numbers = |r: usize| a[r].iter().map(Piece::number);
    let same_pieces = (1..M).all(|r| numbers(r).eq(numbers(0)));
    for j in columns {
        let column = b.column(j);
        let dots = match same_pieces {
            // SAFETY: this function has the features.
            true => unsafe { D::dots(a, column) },
            // SAFETY: as above.
            false => a.map(|a| unsafe { D::dots([a], column) }[0]),
        };
        for (r, dot) in dots.into_iter().enumerate() {
            c.row_mut(i + r)[j] = dot + bias.map_or(0.0, |bias| bias[j]);
        }
    }
}
