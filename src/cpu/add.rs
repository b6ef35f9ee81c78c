//! Residual additions.

use burn::tensor::Tensor;
use hooklens_kernels::elementwise::add;

use super::{HostTensor, in_place};

/// `resid + part`, in the part's own memory where no one else holds it.
pub(crate) fn sum<const D: usize>(resid: Tensor<D>, part: Tensor<D>) -> Tensor<D> {
    if resid.dims() != part.dims() {
        return resid + part;
    }
    let Some(held) = HostTensor::whole(&resid) else { return resid + part };
    in_place(part, |part| add(part, held.run())).unwrap_or_else(|part| resid + part)
}
