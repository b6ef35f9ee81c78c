//! Layer norm and RMS norm.

use burn::tensor::{DType, Tensor};
use hooklens_kernels::norm::{self as kernel, Kind};

use super::{HostTensor, tracked};

/// Normalizes each row of the last axis. `None` if a tensor is not plain. The input may be tracked.
pub(crate) fn norm<const D: usize>(
    input: &Tensor<D>,
    centers: bool,
    eps: f64,
    weight: Option<&Tensor<1>>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    if input.is_tracked() {
        return tracked([input], |[x]| {
            let output = norm(&x, centers, eps, weight, bias)?;
            let (weight, x) = (hold(weight)?, HostTensor::whole(&x)?);
            Some((output, move |gradient: Tensor<D>, _| [back(&x, gradient, centers, eps, weight.as_ref())]))
        });
    }
    let x = HostTensor::whole(input)?;
    let (weight, bias) = (hold(weight)?, hold(bias)?);
    let shape = input.dims();
    let mut output = x.blank(shape.iter().product());
    let parameters = parameters(centers, eps, weight.as_ref(), bias.as_ref());
    kernel::norm(parameters, x.run(), shape[D - 1], output.elements());
    Some(output.tensor(shape))
}

fn back<const D: usize>(
    x: &HostTensor,
    gradient: Tensor<D>,
    centers: bool,
    eps: f64,
    weight: Option<&HostTensor>,
) -> Option<Tensor<D>> {
    let (shape, dy) = (gradient.dims(), HostTensor::whole(&gradient)?);
    let mut output = x.blank(shape.iter().product());
    kernel::norm_back(parameters(centers, eps, weight, None), x.run(), dy.run(), shape[D - 1], output.elements());
    Some(output.tensor(shape))
}

/// Like [`norm`], but returns each row's scale, `[..., 1]`, and the result, both in `f32`.
pub(crate) fn norm_and_scale<const D: usize>(
    input: &Tensor<D>,
    centers: bool,
    eps: f64,
    weight: Option<&Tensor<1>>,
    bias: Option<&Tensor<1>>,
) -> Option<[Tensor<D>; 2]> {
    let x = HostTensor::whole(input)?;
    let (weight, bias) = (hold(weight)?, hold(bias)?);
    let shape = input.dims();
    let count: usize = shape.iter().product();
    let (mut scale, mut y) =
        (x.blank(count / shape[D - 1].max(1)).in_type(DType::F32), x.blank(count).in_type(DType::F32));
    let parameters = parameters(centers, eps, weight.as_ref(), bias.as_ref());
    kernel::norm_and_scale(parameters, x.run(), shape[D - 1], scale.elements(), y.elements());
    let mut scale_shape = shape;
    scale_shape[D - 1] = 1;
    Some([scale.tensor(scale_shape), y.tensor(shape)])
}

fn hold(t: Option<&Tensor<1>>) -> Option<Option<HostTensor>> {
    t.map(HostTensor::whole).map_or(Some(None), |held| held.map(Some))
}

fn parameters<'a>(
    centers: bool,
    eps: f64,
    weight: Option<&'a HostTensor>,
    bias: Option<&'a HostTensor>,
) -> kernel::Norm<'a> {
    kernel::Norm {
        kind: if centers { Kind::Layer } else { Kind::Rms },
        eps: eps as f32,
        weight: weight.map(HostTensor::run),
        bias: bias.map(HostTensor::run),
    }
}
