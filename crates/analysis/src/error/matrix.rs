//! Errors of factored matrices and decompositions.

use std::ops::Range;

use thiserror::Error;

/// Matrices that don't fit each other, or can't be decomposed.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens::circuits::FactoredMatrix;
/// let ones = |shape| Tensor::<2>::ones(shape, &Device::flex());
/// let told = FactoredMatrix::new(ones([2, 3]), ones([4, 2])).unwrap_err().to_string();
/// assert!(told.starts_with("[2, 3] and [4, 2] can't be multiplied: "), "{told}");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// Shapes that can't be multiplied.
    #[error("{left:?} and {right:?} can't be multiplied: {reason}")]
    Shapes {
        /// Shape of the left matrix.
        left: Vec<usize>,
        /// Shape of the right matrix.
        right: Vec<usize>,
        /// Why.
        reason: &'static str,
    },
    /// An index out of range.
    #[error("{what} {} is not within {len}", asked(given))]
    Index {
        /// What was asked for: a layer, a head, rows, columns.
        what: &'static str,
        /// The place asked for.
        given: Range<usize>,
        /// How many there are.
        len: usize,
    },
    /// A decomposition that did not converge.
    #[error("no {what}: {reason}")]
    Numeric {
        /// The decomposition.
        what: &'static str,
        /// What the algorithm reported.
        reason: String,
    },
}

/// One place by its number, several as a range.
fn asked(given: &std::ops::Range<usize>) -> String {
    if given.len() == 1 { given.start.to_string() } else { format!("{given:?}") }
}
