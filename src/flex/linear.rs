//! Matrix products with a bias.

use burn::tensor::Tensor;
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::{elements, plain, plain_rows, plain_whole, stride, tensor, whole};

/// `input · weight + bias`, weights of any strides; `None` if a tensor is not plain.
///
/// # Shapes
/// - input `[rows, in]`, weight `[in, out]`, bias `[out]`, output `[rows, out]`
pub(crate) fn linear(input: &Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    let ([rows, d_in], [_, d_out]) = (input.dims(), weight.dims());
    let (x, w) = (plain_rows(input)?, plain(weight)?);
    if w.layout().strides().iter().any(|s| *s < 0) {
        return None;
    }
    let b = match bias {
        Some(bias) => Some(plain_whole(bias)?),
        None => None,
    };
    let mut output = vec![0.0; rows * d_out];
    let x_view = View2::new(elements(&x), 0, (rows, d_in), (stride(&x, 0), 1));
    let w_view = View2::new(elements(&w), 0, (d_in, d_out), (stride(&w, 0), stride(&w, 1)));
    gemm(x_view, w_view, b.as_ref().map(whole), &mut output, d_out);
    Some(tensor(output, [rows, d_out]))
}
