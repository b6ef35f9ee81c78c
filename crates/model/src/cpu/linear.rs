//! Matrix products with a bias.

use burn::tensor::{DType, Device, Tensor};
use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::pairs::gemm_each_bf16;
use hooklens_kernels::view::View2;

use super::{HostMatrix, HostTensor, tracked};
use crate::cpu::packed_matrix::PackedMatrix;

/// A weight `[in, out]` and a bias `[out]`.
pub(crate) type Map = (Weight, Option<Tensor<1>>);

/// A weight `[in, out]`.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "only a few exist at a time, and a box would cost another allocation per product"
)]
pub enum Weight {
    /// A tensor of `f32` or a 16-bit type, with any strides.
    Plain(Tensor<2>),
    /// A tensor of `bf16`, with any strides, whose products round their inputs to `bf16`. Gradients ignore the rounding.
    RoundingInputs(Tensor<2>),
    /// Quantized in blocks; each column of the weight is a row of blocks.
    Packed(PackedMatrix),
}

impl Weight {
    /// Number of columns, `out`.
    fn width(&self) -> usize {
        match self {
            Weight::Plain(weight) | Weight::RoundingInputs(weight) => weight.dims()[1],
            Weight::Packed(weight) => weight.view().cols(),
        }
    }

    /// The weight as a tensor `[in, out]` of the given dtype, without a copy if it already is one.
    pub(crate) fn in_type(self, device: &Device, dtype: DType) -> Tensor<2> {
        match self {
            Weight::Plain(weight) if weight.dtype() == dtype => weight,
            Weight::Plain(weight) | Weight::RoundingInputs(weight) => weight.cast(dtype),
            Weight::Packed(weight) => weight.widened(device, dtype).transpose(),
        }
    }

    /// An input `[row, in]`, rounded if products round their inputs. Gradients ignore the rounding.
    pub(crate) fn input(&self, input: Tensor<2>) -> Tensor<2> {
        let is_exact = match self {
            Weight::Plain(_) => true,
            Weight::RoundingInputs(_) => false,
            Weight::Packed(weight) => !weight.rounds_inputs(),
        };
        if is_exact {
            return input;
        }
        let plain = input.clone().detach();
        let rounded = match self {
            Weight::Packed(weight) => weight.rounded(&plain),
            _ => plain.clone().cast(DType::BF16).cast(plain.dtype()),
        };
        if input.is_tracked() { input + (rounded - plain) } else { rounded }
    }
}

/// A weight in host memory.
enum Held<'a> {
    Plain(HostMatrix),
    Packed(&'a PackedMatrix),
}

impl Held<'_> {
    fn matrix(&self) -> Matrix<'_> {
        match self {
            Held::Plain(weight) => weight.matrix(),
            Held::Packed(weight) => weight.view().into(),
        }
    }
}

/// `input · weight + bias` for several weights and one input. `None` if a tensor is not plain. The input may be
/// tracked; weights are constants.
///
/// # Shapes
/// - input `[rows, in]`, outputs `[rows, out]`
pub fn linear<const N: usize>(input: &Tensor<2>, maps: &[Map; N]) -> Option<[Tensor<2>; N]> {
    if !input.is_tracked() {
        return plain(input, maps);
    }
    let outputs: Option<Vec<_>> = maps.iter().map(|map| tracked_map(input, map)).collect();
    outputs?.try_into().ok()
}

fn tracked_map(input: &Tensor<2>, map: &Map) -> Option<Tensor<2>> {
    tracked([input], |[x]| {
        let [output] = plain(&x, std::array::from_ref(map))?;
        // Quantized blocks are decoded for the backward pass, which needs rows of the transposed weight.
        let turned = map.0.clone().in_type(&x.device(), x.dtype()).transpose();
        let turned = (Weight::Plain(turned), None);
        Some((output, move |gradient, _| [rows_back(gradient, &turned)]))
    })
}

/// The gradient times a transposed weight. Skips rows that are all zero, as most rows are if the loss depends on the
/// logits of a single position.
pub(super) fn rows_back(gradient: Tensor<2>, turned: &Map) -> Option<Tensor<2>> {
    let times = |rows: &Tensor<2>| plain(rows, std::array::from_ref(turned)).map(|[made]| made);
    let ([rows, d_out], d_in) = (gradient.dims(), turned.0.width());
    let held = HostTensor::whole(&gradient)?;
    let some: Vec<usize> =
        (0..rows).filter(|row| held.run()[row * d_out..][..d_out].iter().any(|x| *x != 0.0)).collect();
    if 2 * some.len() > rows {
        return times(&gradient);
    }
    let mut few = held.blank(some.len() * d_out);
    for (to, from) in few.elements().chunks_exact_mut(d_out.max(1)).zip(&some) {
        to.copy_from_slice(&held.run()[from * d_out..][..d_out]);
    }
    let made = HostTensor::whole(&times(&few.tensor([some.len(), d_out]))?)?;
    let mut output = held.zeros(rows * d_in);
    for (from, to) in made.run().chunks_exact(d_in.max(1)).zip(&some) {
        output.elements()[to * d_in..][..d_in].copy_from_slice(from);
    }
    Some(output.tensor([rows, d_in]))
}

/// A weight and bias in host memory.
fn held_map((weight, bias): &Map) -> Option<(Held<'_>, Option<HostTensor>)> {
    let bias = match bias {
        Some(bias) => Some(HostTensor::whole(bias)?),
        None => None,
    };
    let weight = match weight {
        Weight::Plain(weight) | Weight::RoundingInputs(weight) => Held::Plain(HostMatrix::of(weight)?),
        Weight::Packed(weight) => Held::Packed(weight),
    };
    Some((weight, bias))
}

fn plain<const N: usize>(input: &Tensor<2>, maps: &[Map; N]) -> Option<[Tensor<2>; N]> {
    let rounding = maps.iter().filter(|(weight, _)| matches!(weight, Weight::RoundingInputs(_))).count();
    if rounding != 0 && rounding != N {
        let outputs = maps.iter().map(|map| plain(input, std::array::from_ref(map)).map(|[output]| output));
        return outputs.collect::<Option<Vec<_>>>()?.try_into().ok();
    }
    let [rows, d_in] = input.dims();
    let held: Vec<_> = maps.iter().map(held_map).collect::<Option<_>>()?;
    let x = HostMatrix::of(input)?;
    let widths = maps.each_ref().map(|(weight, _)| weight.width());
    let mut outputs = widths.map(|d_out| x.blank(rows * d_out));
    let mut products = Vec::with_capacity(N);
    for (((w, b), output), d_out) in held.iter().zip(&mut outputs).zip(widths) {
        let bias = b.as_ref().map(HostTensor::run);
        products.push(Product { b: w.matrix(), bias, c: output.elements(), ldc: d_out });
    }
    let rounded = if rounding > 0 { Some(rounded(input)?) } else { None };
    let (input, x) = match &rounded {
        Some(rounded) => (rounded, HostMatrix::of(rounded)?),
        None => (input, x),
    };
    // Products of bf16 inputs use the CPU's bf16 instructions if it has them.
    let products = match x.matrix() {
        Matrix::Bf16(x) => gemm_each_bf16(x, products),
        _ => Err(products),
    };
    if let Err(products) = products {
        let x = HostTensor::rows(input)?;
        gemm_each(View2::new(x.elements(), 0, (rows, d_in), (x.stride(0), 1)), products);
    }
    let mut widths = widths.into_iter();
    Some(outputs.map(|output| output.tensor([rows, widths.next().unwrap_or_default()])))
}

/// The input in `bf16`.
fn rounded(input: &Tensor<2>) -> Option<Tensor<2>> {
    let x = HostTensor::whole(input)?;
    let mut rounded = x.blank(x.run().len()).in_type(DType::BF16);
    rounded.elements().copy_from_slice(x.run());
    Some(rounded.tensor(input.dims()))
}
