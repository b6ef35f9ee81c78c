//! [`FactoredMatrix`]: a matrix stored as the product of two thin matrices.

use std::ops::{Bound, Range, RangeBounds};

use crate::error::MatrixError;
use burn::tensor::Tensor;

/// The product `a · b`, multiplied out only on request. `a` is `[..., left, inner]` and `b` is `[..., inner, right]`,
/// with equal leading axes.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens::circuits::FactoredMatrix;
/// let device = Device::flex();
/// let a = Tensor::<2>::from_floats([[1.0], [2.0]], &device);
/// let b = Tensor::<2>::from_floats([[3.0, 4.0]], &device);
/// let m = FactoredMatrix::new(a, b)?;
/// assert_eq!((m.dims(), m.inner()), ([2, 2], 1));
/// assert_eq!(m.norm().into_scalar::<f32>(), (9f32 + 16.0 + 36.0 + 64.0).sqrt());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FactoredMatrix<const D: usize> {
    pub(super) a: Tensor<D>,
    pub(super) b: Tensor<D>,
}

impl<const D: usize> FactoredMatrix<D> {
    /// Creates the product of two matrices. Leading axes of length 1 are broadcast.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let device = Device::flex();
    /// // One left factor for three right factors.
    /// let many = FactoredMatrix::new(Tensor::<3>::ones([1, 2, 4], &device), Tensor::ones([3, 4, 5], &device))?;
    /// assert_eq!(many.dims(), [3, 2, 5]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the inner lengths or the leading axes do not match.
    pub fn new(a: Tensor<D>, b: Tensor<D>) -> Result<Self, MatrixError> {
        const { assert!(D >= 2, "a matrix has at least two axes") };
        let (left, right) = (a.dims(), b.dims());
        let fails = |reason| Err(MatrixError::Shapes { left: left.to_vec(), right: right.to_vec(), reason });
        if left[D - 1] != right[D - 2] {
            return fails("the inner dimensions differ");
        }
        let (mut wide_a, mut wide_b) = (left, right);
        for axis in 0..D - 2 {
            match (left[axis], right[axis]) {
                (a, b) if a == b => {}
                (1, b) => wide_a[axis] = b,
                (a, 1) => wide_b[axis] = a,
                _ => return fails("the leading dimensions cannot be broadcast"),
            }
        }
        let widened = |t: Tensor<D>, from: [usize; D], to: [usize; D]| if from == to { t } else { t.expand(to) };
        Ok(Self { a: widened(a, left, wide_a), b: widened(b, right, wide_b) })
    }

    /// The left factor, `[..., left, inner]`.
    pub fn a(&self) -> &Tensor<D> {
        &self.a
    }

    /// The right factor, `[..., inner, right]`.
    pub fn b(&self) -> &Tensor<D> {
        &self.b
    }

    /// Shape of the product, `[..., left, right]`.
    pub fn dims(&self) -> [usize; D] {
        let mut dims = self.a.dims();
        dims[D - 1] = self.b.dims()[D - 1];
        dims
    }

    /// Length of the inner axis, an upper bound on the rank.
    pub fn inner(&self) -> usize {
        self.a.dims()[D - 1]
    }

    /// The product, `[..., left, right]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(0, 1)?;
    /// let by_hand = ov.a().clone().matmul(ov.b().clone());
    /// assert_eq!(ov.ab().dims(), [64, 64]);
    /// assert!((ov.ab() - by_hand).abs().max().into_scalar::<f32>() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn ab(&self) -> Tensor<D> {
        self.a.clone().matmul(self.b.clone())
    }

    /// The factors multiplied in reverse order, `[..., inner, inner]`. Has the same nonzero eigenvalues as the product.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(0, 1)?;
    /// let one = |m: &Tensor<2>| Tensor::<2>::eye(m.dims()[0], &m.device());
    /// let trace = |m: Tensor<2>| (m.clone() * one(&m)).sum().into_scalar::<f32>();
    /// assert_eq!(ov.ba()?.dims(), [16, 16]);
    /// assert!((trace(ov.ba()?) - trace(ov.ab())).abs() < 1e-3); // the sum of the same eigenvalues
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the product is not square.
    pub fn ba(&self) -> Result<Tensor<D>, MatrixError> {
        let (left, right) = (self.b.dims(), self.a.dims());
        if left[D - 1] != right[D - 2] {
            let reason = "the product is not square";
            return Err(MatrixError::Shapes { left: left.to_vec(), right: right.to_vec(), reason });
        }
        Ok(self.b.clone().matmul(self.a.clone()))
    }

    /// The transpose.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let qk = model.qk().at(0, 1)?;
    /// assert!((qk.transposed().ab() - qk.ab().transpose()).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn transposed(&self) -> Self {
        Self { a: self.b.clone().swap_dims(D - 2, D - 1), b: self.a.clone().swap_dims(D - 2, D - 1) }
    }

    /// Multiplies by a matrix `[..., right, x]` on the right.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// // The logits that a head's output adds for each input direction: the full OV circuit without the embedding.
    /// let to_logits = model.ov().at(3, 0)?.times_matrix(model.w_u())?;
    /// assert_eq!((to_logits.dims(), to_logits.inner()), ([64, 61], 16));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the shapes do not match.
    pub fn times_matrix(&self, matrix: Tensor<D>) -> Result<Self, MatrixError> {
        let right = Self::new(self.b.clone(), matrix)?;
        Self::new(self.a.clone(), right.ab())
    }

    /// Multiplies by a matrix `[..., x, left]` on the left.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let circuit = model.ov().at(3, 0)?.after_matrix(model.w_e())?.times_matrix(model.w_u())?;
    /// assert_eq!((circuit.dims(), circuit.inner()), ([61, 61], 16)); // from token to token
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the shapes do not match.
    pub fn after_matrix(&self, matrix: Tensor<D>) -> Result<Self, MatrixError> {
        let left = Self::new(matrix, self.a.clone())?;
        Self::new(left.ab(), self.b.clone())
    }

    /// Multiplies by another factored matrix on the right, keeping the smaller inner length.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let both = model.ov().at(0, 1)?.times(&model.ov().at(1, 2)?)?; // one head after another
    /// let by_hand = model.ov().at(0, 1)?.ab().matmul(model.ov().at(1, 2)?.ab());
    /// assert!((both.ab() - by_hand).abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the shapes do not match.
    pub fn times(&self, other: &Self) -> Result<Self, MatrixError> {
        let middle = Self::new(self.b.clone(), other.a.clone())?.ab();
        if self.inner() <= other.inner() {
            Self::new(self.a.clone(), Self::new(middle, other.b.clone())?.ab())
        } else {
            Self::new(Self::new(self.a.clone(), middle)?.ab(), other.b.clone())
        }
    }

    /// Multiplies every element by a number.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(0, 1)?;
    /// let [twice, once] = [ov.scaled(2.0).norm(), ov.norm()].map(|norm| norm.into_scalar::<f32>());
    /// assert!((twice / once - 2.0).abs() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn scaled(&self, by: f64) -> Self {
        Self { a: self.a.clone() * by, b: self.b.clone() }
    }

    /// Frobenius norm of each matrix, `[..., 1, 1]`, computed from the factors: `‖AB‖² = Σ (AᵀA) ∘ (BBᵀ)`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let norms = model.ov().norm(); // all heads, without multiplying out
    /// assert_eq!(norms.dims(), [4, 4, 1, 1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn norm(&self) -> Tensor<D> {
        let left = self.a.clone().swap_dims(D - 2, D - 1).matmul(self.a.clone());
        let right = self.b.clone().matmul(self.b.clone().swap_dims(D - 2, D - 1));
        (left * right).sum_dim(D - 1).sum_dim(D - 2).clamp_min(0.0).sqrt()
    }

    /// A block of the product, without computing the rest.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let circuit = model.ov().at(3, 0)?.after_matrix(model.w_e())?.times_matrix(model.w_u())?;
    /// let names = circuit.slice(1..21, ..)?; // from the tokens that are names
    /// assert_eq!((names.dims(), names.slice(.., 1..21)?.dims()), ([20, 61], [20, 20]));
    /// assert!(circuit.slice(50..70, ..).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Index`] for an empty or invalid range.
    pub fn slice(&self, rows: impl RangeBounds<usize>, columns: impl RangeBounds<usize>) -> Result<Self, MatrixError> {
        let dims = self.dims();
        let rows = within("rows", bounded(rows, dims[D - 2]), dims[D - 2])?;
        let columns = within("columns", bounded(columns, dims[D - 1]), dims[D - 1])?;
        Ok(Self {
            a: self.a.clone().narrow(D - 2, rows.start, rows.len()),
            b: self.b.clone().narrow(D - 1, columns.start, columns.len()),
        })
    }
}

/// Converts range bounds to indices along an axis of length `len`. The indices may exceed `len`.
fn bounded(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    start..end
}

pub(super) fn within(what: &'static str, given: Range<usize>, len: usize) -> Result<Range<usize>, MatrixError> {
    if given.is_empty() || given.end > len { Err(MatrixError::Index { what, given, len }) } else { Ok(given) }
}

impl FactoredMatrix<4> {
    /// The matrix of one head, from a stack `[layer, head, ...]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let head = model.qk().at(2, 3)?;
    /// assert_eq!((head.dims(), head.inner()), ([64, 64], 16));
    /// assert_eq!(model.qk().at(9, 0).unwrap_err().to_string(), "layer 9 out of range; there are 4");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Index`] for an invalid layer or head.
    pub fn at(&self, layer: usize, head: usize) -> Result<FactoredMatrix<2>, MatrixError> {
        let [layers, heads, ..] = self.a.dims();
        within("layer", layer..layer + 1, layers)?;
        within("head", head..head + 1, heads)?;
        let one = |t: &Tensor<4>| t.clone().narrow(0, layer, 1).narrow(1, head, 1).squeeze_dims::<2>(&[0, 1]);
        Ok(FactoredMatrix { a: one(&self.a), b: one(&self.b) })
    }
}

impl FactoredMatrix<3> {
    /// One matrix of a stack.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let device = Device::flex();
    /// let many = FactoredMatrix::new(Tensor::<3>::ones([3, 2, 4], &device), Tensor::ones([3, 4, 5], &device))?;
    /// assert_eq!(many.at(2)?.dims(), [2, 5]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Index`] for an invalid index.
    pub fn at(&self, place: usize) -> Result<FactoredMatrix<2>, MatrixError> {
        within("matrix", place..place + 1, self.a.dims()[0])?;
        let one = |t: &Tensor<3>| t.clone().narrow(0, place, 1).squeeze_dim::<2>(0);
        Ok(FactoredMatrix { a: one(&self.a), b: one(&self.b) })
    }
}
