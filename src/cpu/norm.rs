//! Layer norm and RMS norm.

use burn::tensor::Tensor;
use hooklens_kernels::norm::{self as kernel, Kind};

use super::Held;

/// A norm with everything a hook may want to see.
pub(crate) struct NormParts<const D: usize> {
    /// `[..., 1]`
    pub(crate) scale: Tensor<D>,
    /// Input (centred, if the norm centres) over scale, `[..., d]`.
    pub(crate) normalized: Tensor<D>,
}

/// The norm of each row of the last axis; `None` if a tensor is not plain.
pub(crate) fn norm<const D: usize>(
    input: &Tensor<D>,
    centres: bool,
    eps: f64,
    weight: Option<&Tensor<1>>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let x = Held::whole(input)?;
    let hold = |t: Option<&Tensor<1>>| t.map(Held::whole).map_or(Some(None), |held| held.map(Some));
    let (weight, bias) = (hold(weight)?, hold(bias)?);
    let parameters = kernel::Norm {
        kind: if centres { Kind::Layer } else { Kind::Rms },
        eps: eps as f32,
        weight: weight.as_ref().map(Held::run),
        bias: bias.as_ref().map(Held::run),
    };
    let shape = input.dims();
    let mut output = x.blank(shape.iter().product());
    kernel::norm(parameters, x.run(), shape[D - 1], output.elements());
    Some(output.tensor(shape))
}

/// Scale and quotient of each row of the last axis; `None` if the tensor is not plain.
pub(crate) fn norm_parts<const D: usize>(input: &Tensor<D>, centres: bool, eps: f64) -> Option<NormParts<D>> {
    let x = Held::whole(input)?;
    let kind = if centres { Kind::Layer } else { Kind::Rms };
    let parameters = kernel::Norm { kind, eps: eps as f32, weight: None, bias: None };
    let shape = input.dims();
    let count: usize = shape.iter().product();
    let (mut scale, mut normalized) = (x.blank(count / shape[D - 1].max(1)), x.blank(count));
    kernel::norm_parts(parameters, x.run(), shape[D - 1], scale.elements(), normalized.elements(), None);
    let mut scale_shape = shape;
    scale_shape[D - 1] = 1;
    Some(NormParts { scale: scale.tensor(scale_shape), normalized: normalized.tensor(shape) })
}
