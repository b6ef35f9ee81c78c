//! Singular value decomposition and eigenvalues of factored matrices.

use burn::tensor::{Tensor, TensorData};
use faer::Mat;

use super::factored_matrix::FactoredMatrix;
use crate::error::MatrixError;

/// Singular value decomposition `u · diag(s) · vh` of each matrix: `s` is in descending order, and the columns of `u`
/// and the rows of `vh` are orthonormal.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let ov = model.ov().at(0, 0)?;
/// let svd = ov.svd()?;
/// assert_eq!((svd.u.dims(), svd.s.dims(), svd.vh.dims()), ([64, 16], [1, 16], [16, 64]));
/// let again = (svd.u * svd.s).matmul(svd.vh);
/// assert!((again - ov.ab()).abs().max().into_scalar::<f32>() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Svd<const D: usize> {
    /// Left singular vectors, `[..., left, rank]`.
    pub u: Tensor<D>,
    /// Singular values, `[..., 1, rank]`.
    pub s: Tensor<D>,
    /// Right singular vectors, `[..., rank, right]`.
    pub vh: Tensor<D>,
}

/// Eigenvalues of each matrix, in descending order of magnitude.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens::circuits::FactoredMatrix;
/// let device = Device::flex();
/// let turn = Tensor::<2>::from_floats([[0.0, -1.0], [1.0, 0.0]], &device); // rotation by a right angle
/// let values = FactoredMatrix::new(turn, Tensor::eye(2, &device))?.eigenvalues()?;
/// assert!(values.re.abs().max().into_scalar::<f32>() < 1e-6); // i and -i
/// assert!((values.im.abs() - 1.0).abs().max().into_scalar::<f32>() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Eigenvalues<const D: usize> {
    /// Real parts, `[..., 1, inner]`.
    pub re: Tensor<D>,
    /// Imaginary parts, `[..., 1, inner]`.
    pub im: Tensor<D>,
}

impl<const D: usize> FactoredMatrix<D> {
    /// The singular value decomposition, computed in f64 from the small matrix between the factors.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let svd = model.ov().svd()?; // all heads at once
    /// assert_eq!(svd.s.dims(), [4, 4, 1, 16]); // [layer, head, 1, rank]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Numeric`] if the decomposition fails.
    pub fn svd(&self) -> Result<Svd<D>, MatrixError> {
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
        Ok(Svd { u, s, vh })
    }

    /// The `inner` eigenvalues of the product that can be nonzero.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let column = Tensor::<2>::from_floats([[1.0], [2.0]], &Device::flex());
    /// let values = FactoredMatrix::new(column.clone(), column.transpose())?.eigenvalues()?;
    /// assert!((values.re.into_scalar::<f32>() - 5.0).abs() < 1e-5); // the only nonzero one
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError::Shapes`] if the product is not square, [`MatrixError::Numeric`] if the decomposition fails.
    pub fn eigenvalues(&self) -> Result<Eigenvalues<D>, MatrixError> {
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
        Ok(Eigenvalues { re, im })
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
        let Svd { u, s, vh } = self.svd()?;
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
        let Svd { s, vh, .. } = self.svd()?;
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
        let Svd { u, s, .. } = self.svd()?;
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

impl<const D: usize> Eigenvalues<D> {
    /// The copying score of each matrix (Elhage et al. 2021): the sum of its eigenvalues divided by the sum of their
    /// magnitudes, from -1 to 1. For an OV circuit, a value near 1 means that the head copies.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::circuits::FactoredMatrix;
    /// let one = Tensor::<2>::eye(3, &Device::flex());
    /// let copies = FactoredMatrix::new(one.clone(), one.clone())?;
    /// let negates = FactoredMatrix::new(one.clone(), -one)?;
    /// assert!((copies.eigenvalues()?.copying()[0] - 1.0).abs() < 1e-6);
    /// assert!((negates.eigenvalues()?.copying()[0] + 1.0).abs() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn copying(&self) -> Vec<f64> {
        let values = |t: &Tensor<D>| t.to_data().iter::<f64>().collect::<Vec<f64>>();
        let (re, im) = (values(&self.re), values(&self.im));
        let count = self.re.dims()[D - 1].max(1);
        let of = |(re, im): (&[f64], &[f64])| {
            let sizes: f64 = re.iter().zip(im).map(|(re, im)| re.hypot(*im)).sum();
            if sizes == 0.0 { 0.0 } else { re.iter().sum::<f64>() / sizes }
        };
        re.chunks(count).zip(im.chunks(count)).map(of).collect()
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
