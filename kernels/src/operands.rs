//! The operands of a product `c = a · b (+ bias)`.

use crate::view::{OutTile, View2};

/// Optional vector added to every row of the product.
pub(crate) type Bias<'a> = Option<&'a [f32]>;

/// Asserts that the operands of `c = a · b + bias` agree.
pub(crate) fn check(a: View2, (rows, cols): (usize, usize), bias: Bias, c: &OutTile) {
    assert_eq!(a.cols(), rows, "inner dimensions differ");
    assert!(a.rows_contiguous(), "rows of A must be contiguous");
    assert!(c.rows() == a.rows() && c.cols() == cols, "C has the wrong shape");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "bias has the wrong length");
}
