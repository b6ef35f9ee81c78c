//! A matrix of weights in any of the element types that products read.

use half::{bf16, f16};

use crate::packed::Packed;
use crate::view::View2;

/// A read-only matrix.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Of `f32`.
    F32(View2<'a>),
    /// Of `bf16`.
    Bf16(View2<'a, bf16>),
    /// Of `f16`.
    F16(View2<'a, f16>),
    /// Of blocks of a few bits a number.
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

/// The same expression for a view of any element type, and another for what is packed.
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
