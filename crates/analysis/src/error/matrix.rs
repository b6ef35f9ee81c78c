//! Errors of factored matrices and decompositions.

use std::ops::Range;

use thiserror::Error;

/// Matrices that are incompatible or cannot be decomposed.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens::circuits::FactoredMatrix;
/// let ones = |shape| Tensor::<2>::ones(shape, &Device::flex());
/// let message = FactoredMatrix::new(ones([2, 3]), ones([4, 2])).unwrap_err().to_string();
/// assert!(message.starts_with("[2, 3] and [4, 2] can't be multiplied: "), "{message}");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The shapes cannot be multiplied.
    #[error("{left:?} and {right:?} can't be multiplied: {reason}")]
    Shapes {
        /// Shape of the left matrix.
        left: Vec<usize>,
        /// Shape of the right matrix.
        right: Vec<usize>,
        /// Why the shapes are incompatible.
        reason: &'static str,
    },
    /// An index is out of range.
    #[error("{what} {} out of range; there are {len}", asked(given))]
    Index {
        /// Kind of index: a layer, a head, rows or columns.
        what: &'static str,
        /// The requested index or range.
        given: Range<usize>,
        /// Number of valid indices.
        len: usize,
    },
    /// A decomposition did not converge.
    #[error("cannot compute {what}: {reason}")]
    Numeric {
        /// Name of the decomposition.
        what: &'static str,
        /// What the algorithm reported.
        reason: String,
    },
}

/// Formats a single index as a number, several as a range.
fn asked(given: &std::ops::Range<usize>) -> String {
    if given.len() == 1 { given.start.to_string() } else { format!("{given:?}") }
}
