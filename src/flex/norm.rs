//! Layer norm and RMS norm.

use burn::tensor::Tensor;
use hooklens_kernels::norm::{self as kernel, Kind};

use super::{plain_whole, tensor, whole};

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
    let x = plain_whole(input)?;
    let hold = |t: Option<&Tensor<1>>| t.map(plain_whole).map_or(Some(None), |held| held.map(Some));
    let (weight, bias) = (hold(weight)?, hold(bias)?);
    let parameters = kernel::Norm {
        kind: if centres { Kind::Layer } else { Kind::Rms },
        eps: eps as f32,
        weight: weight.as_ref().map(whole),
        bias: bias.as_ref().map(whole),
    };
    let shape = input.dims();
    let mut output = vec![0.0; shape.iter().product()];
    kernel::norm(parameters, whole(&x), shape[D - 1], &mut output);
    Some(tensor(output, shape))
}

/// Scale and quotient of each row of the last axis; `None` if the tensor is not plain.
pub(crate) fn norm_parts<const D: usize>(input: &Tensor<D>, centres: bool, eps: f64) -> Option<NormParts<D>> {
    let x = plain_whole(input)?;
    let kind = if centres { Kind::Layer } else { Kind::Rms };
    let parameters = kernel::Norm { kind, eps: eps as f32, weight: None, bias: None };
    let shape = input.dims();
    let count: usize = shape.iter().product();
    let (mut scale, mut normalized) = (vec![0.0; count / shape[D - 1].max(1)], vec![0.0; count]);
    kernel::norm_parts(parameters, whole(&x), shape[D - 1], &mut scale, &mut normalized, None);
    let mut scale_shape = shape;
    scale_shape[D - 1] = 1;
    Some(NormParts { scale: tensor(scale, scale_shape), normalized: tensor(normalized, shape) })
}
