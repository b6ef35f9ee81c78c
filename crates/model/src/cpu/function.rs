//! Activation functions.

use burn::tensor::Tensor;
use hooklens_kernels::elementwise::{
    gelu_erf, gelu_erf_back, gelu_tanh, gelu_tanh_back, relu, relu_back, silu, silu_back,
};

use super::{HostTensor, in_place, in_place_by_element, tracked};
use crate::config::ActivationFn;

/// Applies an activation function. Returns the tensor unchanged as an error if it is not plain or the function has no
/// kernel. The tensor may be tracked.
pub(crate) fn activation<const D: usize>(function: ActivationFn, x: Tensor<D>) -> Result<Tensor<D>, Tensor<D>> {
    if x.is_tracked() {
        return tracked_activation(function, &x).ok_or(x);
    }
    match function {
        ActivationFn::Relu => in_place_by_element(x, relu),
        ActivationFn::Gelu => in_place_by_element(x, gelu_erf),
        ActivationFn::GeluNew => in_place_by_element(x, gelu_tanh),
        ActivationFn::Silu => in_place_by_element(x, silu),
        _ => Err(x),
    }
}

fn tracked_activation<const D: usize>(function: ActivationFn, x: &Tensor<D>) -> Option<Tensor<D>> {
    let back: fn(&mut [f32], &[f32]) = match function {
        ActivationFn::Relu => relu_back,
        ActivationFn::Gelu => gelu_erf_back,
        ActivationFn::GeluNew => gelu_tanh_back,
        ActivationFn::Silu => silu_back,
        _ => return None,
    };
    tracked([x], |[x]| {
        let held = HostTensor::whole(&x)?;
        // `held` keeps the input alive, so the function works on a copy.
        let output = activation(function, x).ok()?;
        Some((output, move |gradient, _| [in_place(gradient, |g| back(g, held.run())).ok()]))
    })
}
