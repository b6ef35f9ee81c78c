//! Elementwise sums and products of tensors of equal shape.

use burn::tensor::Tensor;
use hooklens_kernels::elementwise::{add, multiply};

use super::{HostTensor, in_place, tracked};

/// `resid + part`, reusing the memory of `part` if there is no other handle to it.
pub(crate) fn sum<const D: usize>(resid: Tensor<D>, part: Tensor<D>) -> Tensor<D> {
    if resid.dims() != part.dims() {
        return resid + part;
    }
    let Some(held) = HostTensor::whole(&resid) else { return resid + part };
    in_place(part, |part| add(part, held.run())).unwrap_or_else(|part| resid + part)
}

/// `x * y`, reusing the memory of `x` if there is no other handle to it. Both may be tracked.
pub(crate) fn product<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    if let Some(made) = tracked_product(&x, &y) {
        return made;
    }
    let Some(held) = HostTensor::whole(&y).filter(|_| x.dims() == y.dims()) else { return x * y };
    in_place(x, |x| multiply(x, held.run())).unwrap_or_else(|x| x * y)
}

fn tracked_product<const D: usize>(x: &Tensor<D>, y: &Tensor<D>) -> Option<Tensor<D>> {
    if x.dims() != y.dims() {
        return None;
    }
    tracked([x, y], |[x, y]| {
        let held = [HostTensor::whole(&x)?, HostTensor::whole(&y)?];
        let output = product(x, y);
        let back = move |gradient: Tensor<D>, needed: [bool; 2]| {
            let times = |which: usize| {
                let factor = &held[which];
                in_place(gradient.clone(), |g| multiply(g, factor.run())).ok()
            };
            [needed[0].then(|| times(1)).flatten(), needed[1].then(|| times(0)).flatten()]
        };
        Some((output, back))
    })
}
