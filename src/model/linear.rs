//! Linear maps with weights `[in, out]`.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::norm::narrowed;
use crate::cpu;

/// `x · weight + bias`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens::Linear;
/// let device = Device::flex();
/// let map = Linear::new(Tensor::ones([2, 3], &device), Some(Tensor::ones([3], &device)));
/// let out = map.forward(Tensor::<2>::ones([1, 2], &device));
/// assert_eq!((out.dims(), out.max().into_scalar::<f32>()), ([1, 3], 3.0));
/// ```
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`. May be a view with any strides, such as a transposed file tensor, and of 16 bits where what it
    /// multiplies is of 32.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// A map with this weight `[in, out]` and bias `[out]`: parameters of its own, of which gradients reach nothing
    /// they were made from.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self { weight: Param::from_tensor(weight.detach()), bias: bias.map(|b| Param::from_tensor(b.detach())) }
    }

    /// The weight in this element type.
    pub(crate) fn weight_in(&self, dtype: DType) -> Tensor<2> {
        narrowed(self.weight.val(), dtype)
    }

    /// Applies the map to the last axis, in the input's element type.
    ///
    /// # Shapes
    /// - input: `[..., in]`
    /// - output: `[..., out]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [output] = Self::forward_each([self], input);
        output
    }

    /// Applies several maps to the last axis of one input, as of queries, keys and values: at once where that is faster.
    ///
    /// # Shapes
    /// - input: `[..., in]`
    /// - outputs: `[..., out]`
    pub(crate) fn forward_each<const D: usize, const N: usize>(maps: [&Self; N], input: Tensor<D>) -> [Tensor<D>; N] {
        let shape = input.dims();
        let rows = shape[..D - 1].iter().product::<usize>();
        let input = input.reshape([rows, shape[D - 1]]);
        let maps = maps.map(|map| (map.weight.val(), map.bias.as_ref().map(Param::val)));
        let outputs = cpu::linear(&input, &maps).unwrap_or_else(|| {
            // Biases come first, so that a device that fuses what it is asked for meets nothing between product and sum.
            let dtype = input.dtype();
            let held = maps.map(|(weight, bias)| {
                (narrowed(weight, dtype), bias.map(|bias| narrowed(bias, dtype).unsqueeze::<2>()))
            });
            held.map(|(weight, bias)| {
                let output = input.clone().matmul(weight);
                match bias {
                    Some(bias) => output + bias,
                    None => output,
                }
            })
        });
        outputs.map(|output| {
            let mut shape = shape;
            shape[D - 1] = output.dims()[1];
            output.reshape(shape)
        })
    }

    /// Applies head `h`'s own columns to head `h`'s own input.
    ///
    /// # Shapes
    /// - input: `[batch, pos, head, in]`
    /// - output: `[batch, pos, head, out / head]`
    pub(crate) fn forward_per_head(&self, input: Tensor<4>) -> Tensor<4> {
        let [batch, pos, heads, d_in] = input.dims();
        let weight = self.weight_in(input.dtype());
        let d_head = weight.dims()[1] / heads;
        let weight = weight.reshape([d_in, heads, d_head]).permute([1, 0, 2]);
        let rows = input.permute([2, 0, 1, 3]).reshape([heads, batch * pos, d_in]);
        let mut output = rows.matmul(weight);
        if let Some(bias) = &self.bias {
            output = output + bias.val().reshape([heads, 1, d_head]);
        }
        output.reshape([heads, batch, pos, d_head]).permute([1, 2, 0, 3])
    }
}
