//! Linear maps with weights `[in, out]`.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use super::blocks::Blocks;
use super::norm::narrowed;
use crate::cpu;
use crate::cpu::packed_matrix::PackedMatrix;

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
    /// multiplies is of 32. One that a quantized file holds in blocks stays so until its value is asked for: then it
    /// is widened for good. [`Linear::matrix`] gives a copy and leaves it.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl Linear {
    /// A map with this weight `[in, out]` and bias `[out]`: parameters of its own, of which gradients reach nothing
    /// they were made from.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        let device = weight.device();
        Self::of(cpu::Weight::Plain(weight), bias, &device)
    }

    /// A map with this weight, which may be of blocks.
    pub fn of(weight: cpu::Weight, bias: Option<Tensor<1>>, device: &Device) -> Self {
        let (weight, blocks) = Blocks::param(weight, device, false);
        Self { weight, bias: bias.map(|b| Param::from_tensor(b.detach())), blocks }
    }

    /// The weight, `[in, out]`; of blocks a copy in `f32`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.weights.unembed.matrix().dims(), [64, 61]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn matrix(&self) -> Tensor<2> {
        match self.in_blocks() {
            Some(packed) => packed.widened(&self.device(), DType::F32).transpose(),
            None => self.weight.val(),
        }
    }

    /// The weight in this element type.
    pub fn weight_in(&self, dtype: DType) -> Tensor<2> {
        self.kept().in_type(&self.device(), dtype)
    }

    /// The weight as it is kept.
    fn kept(&self) -> cpu::Weight {
        match self.in_blocks() {
            Some(packed) => cpu::Weight::Packed(packed.clone()),
            None => cpu::Weight::Plain(self.weight.val()),
        }
    }

    /// Where the weight is.
    pub fn device(&self) -> Device {
        self.weight.lazy_device()
    }

    /// `[in, out]`.
    pub fn shape(&self) -> [usize; 2] {
        let shape = self.weight.lazy_shape();
        [shape[0], shape[1]]
    }

    /// The weight's blocks, if it is kept so.
    pub(crate) fn in_blocks(&self) -> Option<&PackedMatrix> {
        self.blocks.of(&self.weight)
    }

    /// Bytes of the weight as it is kept.
    pub fn size(&self) -> usize {
        match self.in_blocks() {
            Some(packed) => packed.size(),
            None => self.weight.val().shape().num_elements() * self.weight.val().dtype().size(),
        }
    }

    /// Makes a weight of blocks a plain one.
    pub(crate) fn widen(&mut self) {
        if self.in_blocks().is_some() {
            self.weight = Param::from_tensor(self.matrix());
        }
        self.blocks = Blocks::default();
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
        let maps = maps.map(|map| (map.kept(), map.bias.as_ref().map(Param::val)));
        let outputs = cpu::linear(&input, &maps).unwrap_or_else(|| {
            // Biases come first, so that a device that fuses what it is asked for meets nothing between product and sum.
            let (device, dtype) = (input.device(), input.dtype());
            let held = maps.map(|(weight, bias)| {
                (weight.in_type(&device, dtype), bias.map(|bias| narrowed(bias, dtype).unsqueeze::<2>()))
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
