//! The MLP's activation functions.

use std::f64::consts::PI;

use burn::tensor::{Tensor, activation};

use super::norm::{narrowed, widened};
use crate::config::ActivationFn;
use crate::cpu;

impl ActivationFn {
    /// Applies the function to each element (`solu`: to each row of the last axis). The norm of
    /// `solu_ln` is not part of it.
    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let x = match cpu::activation(self, x) {
            Ok(done) => return done,
            Err(x) => x,
        };
        match self {
            Self::Relu => activation::relu(x),
            Self::Gelu => activation::gelu(x),
            Self::GeluNew => gelu_new(x),
            Self::Silu => activation::silu(x),
            Self::Solu | Self::SoluLn => {
                let dtype = x.dtype();
                let share = activation::softmax(widened(x.clone()), D - 1);
                x * narrowed(share, dtype)
            }
        }
    }
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, written as `x sigmoid(2·…)`: the same function,
/// in fewer passes over memory.
fn gelu_new<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let inner = (x.clone().square() * 0.044715 + 1.0) * x.clone();
    x * activation::sigmoid(inner * (2.0 * (2.0 / PI).sqrt()))
}
