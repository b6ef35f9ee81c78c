//! Matrix products with a bias.

use burn::tensor::Tensor;
use hooklens_kernels::gemm::{Product, gemm_each, gemm_each_bf16};
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::view::View2;

use super::{HostMatrix, HostTensor};

/// A weight `[in, out]` of any strides, of 32 bits or 16, and a bias `[out]`.
pub(crate) type Map = (Tensor<2>, Option<Tensor<1>>);

/// `input · weight + bias` for several maps of one input; `None` if a tensor is not plain.
///
/// # Shapes
/// - input `[rows, in]`, outputs `[rows, out]`
pub(crate) fn linear<const N: usize>(input: &Tensor<2>, maps: &[Map; N]) -> Option<[Tensor<2>; N]> {
    let [rows, d_in] = input.dims();
    let hold = |(weight, bias): &Map| {
        let bias = match bias {
            Some(bias) => Some(HostTensor::whole(bias)?),
            None => None,
        };
        Some((HostMatrix::of(weight)?, bias))
    };
    let held: Vec<_> = maps.iter().map(hold).collect::<Option<_>>()?;
    let x = HostMatrix::of(input)?;
    let widths = maps.each_ref().map(|(weight, _)| weight.dims()[1]);
    let mut outputs = widths.map(|d_out| x.blank(rows * d_out));
    let mut products = Vec::with_capacity(N);
    for (((w, b), output), d_out) in held.iter().zip(&mut outputs).zip(widths) {
        let bias = b.as_ref().map(HostTensor::run);
        products.push(Product { b: w.matrix(), bias, c: output.elements(), ldc: d_out });
    }
    // Products of 16-bit numbers are the processor's own where it has them.
    let products = match x.matrix() {
        Matrix::Bf16(x) => gemm_each_bf16(x, products),
        _ => Err(products),
    };
    if let Err(products) = products {
        let x = HostTensor::rows(input)?;
        gemm_each(View2::new(x.elements(), 0, (rows, d_in), (x.stride(0), 1)), products);
    }
    let mut widths = widths.into_iter();
    Some(outputs.map(|output| output.tensor([rows, widths.next().unwrap_or_default()])))
}
