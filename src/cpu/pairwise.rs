//! Sums and products of two tensors of one shape.

use burn::tensor::Tensor;
use hooklens_kernels::elementwise::{add, multiply};

use super::{HostTensor, in_place};

/// `resid + part`, in the part's own memory where no one else holds it.
pub(crate) fn sum<const D: usize>(resid: Tensor<D>, part: Tensor<D>) -> Tensor<D> {
    if resid.dims() != part.dims() {
        return resid + part;
    }
    let Some(held) = HostTensor::whole(&resid) else { return resid + part };
    in_place(part, |part| add(part, held.run())).unwrap_or_else(|part| resid + part)
}

/// `x * y`, in the memory of `x` where no one else holds it.
pub(crate) fn product<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let Some(held) = HostTensor::whole(&y).filter(|_| x.dims() == y.dims()) else { return x * y };
    in_place(x, |x| multiply(x, held.run())).unwrap_or_else(|x| x * y)
}
