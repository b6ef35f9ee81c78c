//! Weight matrices of any supported element type.

use std::ops::Range;

use half::{bf16, f16};

use crate::element::Element;
use crate::isa::{Isa, multiversion};
use crate::packed::{Packed, Rounding};
use crate::view::View2;

/// A read-only weight matrix.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// `f32` elements.
    F32(View2<'a>),
    /// `bf16` elements.
    Bf16(View2<'a, bf16>),
    /// `f16` elements.
    F16(View2<'a, f16>),
    /// Block-quantized elements.
    Packed(Packed<'a>),
}

impl<'a> From<View2<'a>> for Matrix<'a> {
    fn from(view: View2<'a>) -> Self {
        Matrix::F32(view)
    }
}

impl<'a> From<View2<'a, bf16>> for Matrix<'a> {
    fn from(view: View2<'a, bf16>) -> Self {
        Matrix::Bf16(view)
    }
}

impl<'a> From<View2<'a, f16>> for Matrix<'a> {
    fn from(view: View2<'a, f16>) -> Self {
        Matrix::F16(view)
    }
}

impl<'a> From<Packed<'a>> for Matrix<'a> {
    fn from(packed: Packed<'a>) -> Self {
        Matrix::Packed(packed)
    }
}

/// Evaluates one expression for a view of any element type, and another for packed matrices.
macro_rules! with_view {
    ($matrix:expr, $view:ident => $done:expr, $packed:ident => $other:expr) => {
        match $matrix {
            $crate::matrix::Matrix::F32($view) => $done,
            $crate::matrix::Matrix::Bf16($view) => $done,
            $crate::matrix::Matrix::F16($view) => $done,
            $crate::matrix::Matrix::Packed($packed) => $other,
        }
    };
}
pub(crate) use with_view;

impl Matrix<'_> {
    /// Writes a row to `to`, widened to `f32`.
    ///
    /// ```
    /// use hooklens_kernels::matrix::Matrix;
    /// use hooklens_kernels::view::View2;
    /// let (numbers, mut row) = ([1.0f32, 2.0, 3.0, 4.0], [0.0; 2]);
    /// Matrix::from(View2::row_major(&numbers, 2, 2)).widen_row(1, &mut row);
    /// assert_eq!(row, [3.0, 4.0]);
    /// ```
    ///
    /// # Panics
    /// If there is no such row, `to` has a different length than the row, or the matrix is packed.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.rows() && to.len() == self.cols(), "no such row, or `to` has the wrong length");
        with_view!(*self, view => {
            to.iter_mut().enumerate().for_each(|(column, to)| *to = view.at(row, column).widened());
        }, packed => panic!("cannot widen a row of a packed matrix: {packed:?}"));
    }

    /// The matrix, if it is quantized in blocks.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn packed(&self) -> Option<Packed<'_>> {
        with_view!(self, _view => None, packed => Some(*packed))
    }

    /// The same matrix, for a product with only the rows of the other factor from row `first` on.
    pub(crate) fn starting_at(self, first: usize) -> Self {
        match self {
            Matrix::Packed(packed) => Matrix::Packed(packed.starting_at(first)),
            plain => plain,
        }
    }

    /// How products round the other factor; `None` if they do not round it.
    pub(crate) fn rounding(&self) -> Option<Rounding> {
        with_view!(self, _view => None, packed => packed.rounding())
    }

    /// The same matrix, but its products do not round the other factor.
    pub(crate) fn exact(self) -> Self {
        match self {
            Matrix::Packed(packed) => Matrix::Packed(packed.exact()),
            plain => plain,
        }
    }

    /// Row and column of the first NaN or infinite element in the given rows. `None` if there is none, or if the matrix
    /// is packed.
    ///
    /// ```
    /// use hooklens_kernels::matrix::Matrix;
    /// use hooklens_kernels::view::View2;
    /// let matrix: Matrix<'_> = View2::row_major(&[1.0, 2.0, f32::NAN, 3.0], 2, 2).into();
    /// assert_eq!((matrix.not_finite(0..1), matrix.not_finite(0..2)), (None, Some((1, 0))));
    /// ```
    pub fn not_finite(&self, rows: Range<usize>) -> Option<(usize, usize)> {
        with_view!(self, view => not_finite(view, rows), _packed => None)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        with_view!(self, view => view.rows(), packed => packed.rows())
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        with_view!(self, view => view.cols(), packed => packed.cols())
    }

    /// Whether each row is contiguous.
    pub fn rows_contiguous(&self) -> bool {
        with_view!(self, view => view.rows_contiguous(), _packed => false)
    }
}

/// Row and column of the first element that is not finite.
fn not_finite<T: Element>(view: &View2<'_, T>, mut rows: Range<usize>) -> Option<(usize, usize)> {
    let isa = Isa::current();
    // Read in memory order.
    if !view.rows_contiguous() && view.cols_contiguous() {
        let block = view.block((rows.start, rows.len()), (0, view.cols())).t();
        let column = (0..block.rows()).find(|column| !all_finite(isa, block.row(*column, 0, rows.len())))?;
        return rows.find(|row| !view.at(*row, column).widened().is_finite()).map(|row| (row, column));
    }
    let finite = |row: usize| match view.rows_contiguous() {
        true => all_finite(isa, view.row(row, 0, view.cols())),
        false => (0..view.cols()).all(|column| view.at(row, column).widened().is_finite()),
    };
    let row = rows.find(|row| !finite(*row))?;
    (0..view.cols()).find(|column| !view.at(row, *column).widened().is_finite()).map(|column| (row, column))
}

multiversion! {
    fn all_finite<T: Element>(row: &[T]) -> bool = all_finite_body
}

#[inline(always)]
fn all_finite_body<const FMA: bool, T: Element>(row: &[T]) -> bool {
    row.chunks(256).all(|chunk| chunk.iter().fold(true, |all, x| all & x.widened().is_finite()))
}
