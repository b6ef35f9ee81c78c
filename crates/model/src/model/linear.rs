//! Linear layers with weights `[in, out]`.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use super::blocks::Blocks;
use super::norm::narrowed;
use crate::cpu;
use crate::cpu::packed_matrix::PackedMatrix;

/// A linear layer, `x · weight + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    /// Weight, `[in, out]`. May be a strided view, such as a transposed file tensor, and may be 16-bit while its inputs
    /// are 32-bit. A weight stored in quantized blocks stays quantized until its value is accessed, which dequantizes
    /// it permanently. [`Linear::matrix`] returns a copy instead.
    pub weight: Param<Tensor<2>>,
    /// Bias, `[out]`, if any.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl Linear {
    /// Creates a layer with weight `[in, out]` and bias `[out]`. Both become new parameters, detached from the given
    /// tensors.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        let device = weight.device();
        Self::of(cpu::Weight::Plain(weight), bias, &device)
    }

    /// Creates a layer whose weight may be quantized.
    pub fn of(weight: cpu::Weight, bias: Option<Tensor<1>>, device: &Device) -> Self {
        let (weight, blocks) = Blocks::param(weight, device, false);
        Self { weight, bias: bias.map(|b| Param::from_tensor(b.detach())), blocks }
    }

    /// The weight, `[in, out]`; for a quantized weight, a dequantized copy in `f32`.
    pub fn matrix(&self) -> Tensor<2> {
        match self.in_blocks() {
            Some(packed) => packed.widened(&self.device(), DType::F32).transpose(),
            None => self.weight.val(),
        }
    }

    /// The weight cast to this element type.
    pub fn weight_in(&self, dtype: DType) -> Tensor<2> {
        self.kept().in_type(&self.device(), dtype)
    }

    /// The bias; zeros of this element type if there is none.
    pub fn bias_or_zeros(&self, dtype: DType) -> Tensor<1> {
        match &self.bias {
            Some(bias) => bias.val(),
            None => Tensor::zeros([self.shape()[1]], (&self.device(), dtype)),
        }
    }

    /// The weight as it is stored.
    fn kept(&self) -> cpu::Weight {
        match self.in_blocks() {
            Some(packed) => cpu::Weight::Packed(packed.clone()),
            None if self.rounds_to_bf16() => cpu::Weight::RoundingInputs(self.weight.val()),
            None => cpu::Weight::Plain(self.weight.val()),
        }
    }

    /// Device of the weight.
    pub fn device(&self) -> Device {
        self.weight.lazy_device()
    }

    /// Shape of the weight, `[in, out]`.
    pub fn shape(&self) -> [usize; 2] {
        let shape = self.weight.lazy_shape();
        [shape[0], shape[1]]
    }

    /// The weight's quantized blocks, if it is stored in blocks.
    pub(crate) fn in_blocks(&self) -> Option<&PackedMatrix> {
        self.blocks.of(&self.weight)
    }

    /// Whether products round their inputs to `bf16`.
    pub(crate) fn rounds_to_bf16(&self) -> bool {
        self.blocks.round_to_bf16(&self.weight)
    }

    /// Whether products round their inputs.
    pub(crate) fn rounds_inputs(&self) -> bool {
        self.in_blocks().map_or_else(|| self.rounds_to_bf16(), PackedMatrix::rounds_inputs)
    }

    /// Size of the stored weight in bytes.
    pub fn size(&self) -> usize {
        match self.in_blocks() {
            Some(packed) => packed.size(),
            None => self.weight.val().shape().num_elements() * self.weight.val().dtype().size(),
        }
    }

    /// Dequantizes the weight permanently.
    pub(crate) fn widen(&mut self) {
        if self.in_blocks().is_some() {
            self.weight = Param::from_tensor(self.matrix());
        }
        self.blocks = Blocks::default();
    }

    /// Applies the layer to the last axis, in the input's element type.
    ///
    /// # Shapes
    /// - input: `[..., in]`
    /// - output: `[..., out]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [output] = Self::forward_each([self], input);
        output
    }

    /// Applies several layers to the same input, such as query, key, and value projections. Uses a single operation
    /// where that is faster.
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
            // Prepare biases first, so that on a fusing backend nothing comes between the matrix product and the sum.
            let (device, dtype) = (input.device(), input.dtype());
            let held = maps.map(|(weight, bias)| {
                (
                    weight.input(input.clone()),
                    weight.in_type(&device, dtype),
                    bias.map(|bias| narrowed(bias, dtype).unsqueeze::<2>()),
                )
            });
            held.map(|(input, weight, bias)| {
                let output = input.matmul(weight);
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

    /// An input `[row, in]` as products with this weight round it, for products that are computed in another way.
    pub(super) fn rounded(&self, input: Tensor<2>) -> Tensor<2> {
        self.kept().input(input)
    }

    /// Multiplies the input of each head by the columns of the weight that belong to the head.
    ///
    /// # Shapes
    /// - input: `[batch, pos, head, in]`
    /// - output: `[batch, pos, head, out / head]`
    pub(crate) fn forward_per_head(&self, input: Tensor<4>) -> Tensor<4> {
        let [batch, pos, heads, d_in] = input.dims();
        let weight = self.weight_in(input.dtype());
        let d_head = weight.dims()[1] / heads;
        let weight = weight.reshape([d_in, heads, d_head]).permute([1, 0, 2]);
        let rows = self.rounded(input.permute([2, 0, 1, 3]).reshape([heads * batch * pos, d_in]));
        let rows = rows.reshape([heads, batch * pos, d_in]);
        let mut output = rows.matmul(weight);
        if let Some(bias) = &self.bias {
            output = output + bias.val().reshape([heads, 1, d_head]);
        }
        output.reshape([heads, batch, pos, d_head]).permute([1, 2, 0, 3])
    }
}
