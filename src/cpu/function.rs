//! Activation functions.

use burn::tensor::Tensor;
use hooklens_kernels::elementwise::{gelu_erf, gelu_tanh, relu, silu};

use super::in_place;
use crate::config::ActivationFn;

/// Applies the function; hands the tensor back if it is not plain or the function has no kernel.
pub(crate) fn activation<const D: usize>(function: ActivationFn, x: Tensor<D>) -> Result<Tensor<D>, Tensor<D>> {
    match function {
        ActivationFn::Relu => in_place(x, relu),
        ActivationFn::Gelu => in_place(x, gelu_erf),
        ActivationFn::GeluNew => in_place(x, gelu_tanh),
        ActivationFn::Silu => in_place(x, silu),
        ActivationFn::Solu | ActivationFn::SoluLn => Err(x),
    }
}
