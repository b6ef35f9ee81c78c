//! Matrix products with a bias.

use burn::tensor::Tensor;
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::Held;

/// `input · weight + bias`, weights of any strides; `None` if a tensor is not plain.
///
/// # Shapes
/// - input `[rows, in]`, weight `[in, out]`, bias `[out]`, output `[rows, out]`
pub(crate) fn linear(input: &Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    let ([rows, d_in], [_, d_out]) = (input.dims(), weight.dims());
    let (x, w) = (Held::rows(input)?, Held::of(weight)?);
    if !w.is_forward() {
        return None;
    }
    let b = match bias {
        Some(bias) => Some(Held::whole(bias)?),
        None => None,
    };
    let mut output = x.blank(rows * d_out);
    let x_view = View2::new(x.elements(), 0, (rows, d_in), (x.stride(0), 1));
    let w_view = View2::new(w.elements(), 0, (d_in, d_out), (w.stride(0), w.stride(1)));
    gemm(x_view, w_view, b.as_ref().map(Held::run), output.elements(), d_out);
    Some(output.tensor([rows, d_out]))
}
