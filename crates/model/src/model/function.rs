//! MLP activation functions.

use std::f64::consts::{PI, SQRT_2};

use burn::tensor::{Tensor, activation};

use super::norm::{narrowed, widened};
use crate::config::ActivationFn;
use crate::cpu;

/// Mean of the normal distribution whose CDF `laplace` computes (Ma et al. 2022), as rounded by Hugging Face.
#[expect(clippy::approx_constant)]
const LAPLACE_MEAN: f64 = 0.707107;
/// Standard deviation of the normal distribution with mean [`LAPLACE_MEAN`].
const LAPLACE_DEVIATION: f64 = 0.282095;

impl ActivationFn {
    /// Applies the function elementwise, or for `solu` to each row of the last axis. Does not include the norm of
    /// `solu_ln`.
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
            Self::Relu2 => activation::relu(x).square(),
            Self::Relu6 => x.clamp(0.0, 6.0),
            Self::LeakyRelu => activation::leaky_relu(x, 0.01),
            Self::QuickGelu => x.clone() * activation::sigmoid(x * 1.702),
            Self::Gelu10 => activation::gelu(x).clamp(-10.0, 10.0),
            Self::Mish => in_f32(x, activation::mish),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => activation::sigmoid(x),
            Self::Laplace => in_f32(x, |x| (((x - LAPLACE_MEAN) / (LAPLACE_DEVIATION * SQRT_2)).erf() + 1.0) * 0.5),
            Self::Linear => x,
            Self::Xielu => {
                let slope = Tensor::full([1], 0.8, (&x.device(), widened(x.clone()).dtype()));
                xielu(x, slope.clone(), slope)
            }
            Self::Solu | Self::SoluLn => {
                let dtype = x.dtype();
                let share = activation::softmax(widened(x.clone()), D - 1);
                x * narrowed(share, dtype)
            }
        }
    }
}

/// Computes a multi-step function in `f32` or wider.
fn in_f32<const D: usize>(x: Tensor<D>, function: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    narrowed(function(widened(x)), dtype)
}

/// xIELU with slopes `up` and `down`, `[1]` each.
pub(crate) fn xielu<const D: usize>(x: Tensor<D>, up: Tensor<1>, down: Tensor<1>) -> Tensor<D> {
    in_f32(x, |x| {
        let above = x.clone().square() * up.unsqueeze();
        let below = (x.clone().clamp_max(-1e-6).exp() - 1.0 - x.clone()) * down.unsqueeze();
        let positive = x.clone().greater_elem(0.0);
        below.mask_where(positive, above) + x * 0.5
    })
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, written as `x sigmoid(2·…)`: the same function with fewer passes over
/// memory.
fn gelu_new<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let inner = (x.clone().square() * 0.044715 + 1.0) * x.clone();
    x * activation::sigmoid(inner * (2.0 * (2.0 / PI).sqrt()))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use crate::config::ActivationFn;

    /// Covers bounds that the fixtures' small values don't reach.
    #[test]
    fn bounds_of_activation_functions() {
        let x = || Tensor::<1>::from_floats([-20.0, -1.0, 0.5, 7.0, 12.0], &Device::flex());
        let of = |function: ActivationFn| function.apply(x()).into_data().try_into_vec::<f32>().unwrap();
        assert_eq!(of(ActivationFn::Relu6), [0.0, 0.0, 0.5, 6.0, 6.0]);
        assert_eq!(of(ActivationFn::Gelu10)[3..], [7.0, 10.0]);
        assert_eq!(of(ActivationFn::Relu2), [0.0, 0.0, 0.25, 49.0, 144.0]);
        assert_eq!(of(ActivationFn::Linear), [-20.0, -1.0, 0.5, 7.0, 12.0]);
        let mish = of(ActivationFn::Mish);
        assert!((mish[1] + 0.303_401).abs() < 1e-5 && (mish[4] - 12.0).abs() < 1e-4, "{mish:?}");
    }
}
