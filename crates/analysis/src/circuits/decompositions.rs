//! Singular value decomposition and eigenvalues of factored matrices.

use burn::tensor::{Tensor, TensorData};
use faer::Mat;

use super::factored_matrix::FactoredMatrix;
use crate::error::MatrixError;

impl<const D: usize> FactoredMatrix<D> {
    /// The singular value decomposition `u · diag(s) · vh` of each matrix, computed in f64 from QR decompositions of
    /// the factors, without multiplying them out: `u` is `[..., left, rank]`, `s` is `[..., 1, rank]` in descending
    /// order, and `vh` is `[..., rank, right]`. The columns of `u` and the rows of `vh` are orthonormal.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let (_, s, _) = model.ov().svd()?; // all heads at once
    /// assert_eq!(s.dims(), [4, 4, 1, 16]); // [layer, head, 1, rank]
    /// let ov = model.ov().at(0, 0)?;
    /// let (u, s, vh) = ov.svd()?;
    /// assert!(((u * s).matmul(vh) - ov.ab()).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Numeric`] if the decomposition fails.
    pub fn svd(&self) -> Result<(Tensor<D>, Tensor<D>, Tensor<D>), MatrixError> {
        let parts = self.each(|a, b| {
            // With `A = Q_a R_a` and `Bᵀ = Q_b R_b`, only the small `R_a R_bᵀ` needs a decomposition.
            let (qa, qb) = (a.qr(), b.transpose().qr());
            let core = qa.thin_R() * qb.thin_R().transpose();
            let svd = core.thin_svd().map_err(|e| numeric("singular values", e))?;
            let u = qa.compute_thin_Q() * svd.U();
            let vh = (qb.compute_thin_Q() * svd.V()).transpose().to_owned();
            let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
            Ok([u, Mat::from_fn(1, values.len(), |_, j| values[j]), vh])
        })?;
        let [u, s, vh] = self.gathered(parts);
        Ok((u, s, vh))
    }

    /// The real and imaginary parts of each product's eigenvalues, `[..., 1, inner]`, in descending order of magnitude.
    /// Only `inner` eigenvalues can be nonzero; the others are omitted.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let device = Device::flex();
    /// let column = Tensor::<2>::from_floats([[1.0], [2.0]], &device);
    /// let (re, _) = FactoredMatrix::new(column.clone(), column.transpose())?.eigenvalues()?;
    /// assert!((re.into_scalar::<f32>() - 5.0).abs() < 1e-5); // the only nonzero one
    /// let turn = Tensor::<2>::from_floats([[0.0, -1.0], [1.0, 0.0]], &device); // rotation by a right angle
    /// let (re, im) = FactoredMatrix::new(turn, Tensor::eye(2, &device))?.eigenvalues()?;
    /// assert!(re.abs().max().into_scalar::<f32>() < 1e-6); // i and -i
    /// assert!((im.abs() - 1.0).abs().max().into_scalar::<f32>() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the product is not square; [`MatrixError::Numeric`] if the decomposition fails.
    pub fn eigenvalues(&self) -> Result<(Tensor<D>, Tensor<D>), MatrixError> {
        self.ba()?;
        let parts = self.each(|a, b| {
            let small = b * a;
            let mut values = small.eigenvalues().map_err(|e| numeric("eigenvalues", e))?;
            values.sort_by(|x, y| {
                (y.re.hypot(y.im), y.re, y.im)
                    .partial_cmp(&(x.re.hypot(x.im), x.re, x.im))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
            let row = |of: &dyn Fn(usize) -> f64| Mat::from_fn(1, values.len(), |_, j| of(j));
            Ok([row(&|j| values[j].re), row(&|j| values[j].im)])
        })?;
        let [re, im] = self.gathered(parts);
        Ok((re, im))
    }

    /// The copying score of each matrix (Elhage et al. 2021): the sum of its eigenvalues divided by the sum of their
    /// magnitudes, from -1 to 1. For an OV circuit, a value near 1 means that the head copies.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let one = Tensor::<2>::eye(3, &Device::flex());
    /// let copies = FactoredMatrix::new(one.clone(), one.clone())?;
    /// let negates = FactoredMatrix::new(one.clone(), -one)?;
    /// assert!((copies.copying()?[0] - 1.0).abs() < 1e-6);
    /// assert!((negates.copying()?[0] + 1.0).abs() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`FactoredMatrix::eigenvalues`].
    pub fn copying(&self) -> Result<Vec<f64>, MatrixError> {
        let (re, im) = self.eigenvalues()?;
        let of = |(re, im): (Mat<f64>, Mat<f64>)| {
            let values = || (0..re.ncols()).map(|j| (re[(0, j)], im[(0, j)]));
            let sizes: f64 = values().map(|(re, im)| re.hypot(im)).sum();
            if sizes == 0.0 { 0.0 } else { values().map(|(re, _)| re).sum::<f64>() / sizes }
        };
        Ok(host(&re)?.into_iter().zip(host(&im)?).map(of).collect())
    }

    /// The same product with balanced factors: `U √S · √S Vᵀ`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(1, 0)?;
    /// let even = ov.make_even()?;
    /// assert!((even.ab() - ov.ab()).abs().max().into_scalar::<f32>() < 1e-4);
    /// let size = |x: &Tensor<2>| x.clone().square().sum().into_scalar::<f32>();
    /// assert!((size(even.a()) / size(even.b()) - 1.0).abs() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Numeric`] if the decomposition fails.
    pub fn make_even(&self) -> Result<Self, MatrixError> {
        let (u, s, vh) = self.svd()?;
        let root = s.sqrt();
        Self::new(u * root.clone(), root.swap_dims(D - 2, D - 1) * vh)
    }

    /// Collapses the left factor: `S Vᵀ`, `[..., rank, right]`, equal to the product up to an orthogonal map on the
    /// left.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(1, 0)?;
    /// let right = ov.collapse_l()?; // [rank, d_model]
    /// let gap = right.clone().transpose().matmul(right) - ov.ab().transpose().matmul(ov.ab());
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Numeric`] if the decomposition fails.
    pub fn collapse_l(&self) -> Result<Tensor<D>, MatrixError> {
        let (_, s, vh) = self.svd()?;
        Ok(s.swap_dims(D - 2, D - 1) * vh)
    }

    /// Collapses the right factor: `U S`, `[..., left, rank]`, equal to the product up to an orthogonal map on the
    /// right.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let ov = model.ov().at(1, 0)?;
    /// let left = ov.collapse_r()?; // [d_model, rank]
    /// let gap = left.clone().matmul(left.transpose()) - ov.ab().matmul(ov.ab().transpose());
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Numeric`] if the decomposition fails.
    pub fn collapse_r(&self) -> Result<Tensor<D>, MatrixError> {
        let (u, s, _) = self.svd()?;
        Ok(u * s)
    }

    /// Calls `of` on each pair of factors, on the host.
    fn each<const N: usize>(
        &self,
        of: impl Fn(Mat<f64>, Mat<f64>) -> Result<[Mat<f64>; N], MatrixError>,
    ) -> Result<Vec<[Mat<f64>; N]>, MatrixError> {
        let (a, b) = (host(&self.a)?, host(&self.b)?);
        a.into_iter().zip(b).map(|(a, b)| of(a, b)).collect()
    }

    /// Stacks matrices along the leading axes of `self`.
    fn gathered<const N: usize>(&self, parts: Vec<[Mat<f64>; N]>) -> [Tensor<D>; N] {
        let (device, dtype) = (self.a.device(), self.a.dtype());
        std::array::from_fn(|which| {
            let (rows, columns) = parts.first().map_or((0, 0), |part| (part[which].nrows(), part[which].ncols()));
            let values: Vec<f64> = parts
                .iter()
                .flat_map(|part| {
                    let matrix = &part[which];
                    (0..rows).flat_map(move |i| (0..columns).map(move |j| matrix[(i, j)]))
                })
                .collect();
            let mut dims = self.a.dims();
            (dims[D - 2], dims[D - 1]) = (rows, columns);
            Tensor::from_data(TensorData::new(values, dims), (&device, dtype))
        })
    }
}

/// Reads the matrices of a stack to the host.
pub(super) fn host<const D: usize>(stack: &Tensor<D>) -> Result<Vec<Mat<f64>>, MatrixError> {
    let dims = stack.dims();
    let (rows, columns) = (dims[D - 2], dims[D - 1]);
    let data = hooklens_hooks::read(stack.clone()).map_err(|e| numeric("values", e))?;
    let values: Vec<f64> = data.iter::<f64>().collect();
    let matrix = |values: &[f64]| Mat::from_fn(rows, columns, |i, j| values[i * columns + j]);
    Ok(values.chunks((rows * columns).max(1)).map(matrix).collect())
}

pub(super) fn numeric(what: &'static str, reason: impl std::fmt::Debug) -> MatrixError {
    MatrixError::Numeric { what, reason: format!("{reason:?}") }
}
