//! Dictionary latents: activation functions in place, and sparse decoding.

use std::ops::Range;

use burn::tensor::Tensor;
use hooklens_kernels::latents;
use hooklens_kernels::latents::Keep;
use hooklens_kernels::sparse::{Sparse, times};

use super::linear::rows_back;
use super::{HostMatrix, HostTensor, Weight, in_place, tracked};

/// Zeroes the pre-activations `[rows, latents]`, except those that `which` keeps. Returns the tensor unchanged as an
/// error if it is not plain. The gradient passes through kept latents only.
pub fn keep(pre: Tensor<2>, which: Keep<'_>) -> Result<Tensor<2>, Tensor<2>> {
    let [_, width] = pre.dims();
    let plain = |pre: Tensor<2>| in_place(pre, |acts| latents::keep(which, width, acts));
    if !pre.is_tracked() {
        return plain(pre);
    }
    let kept = tracked([&pre], |[pre]| {
        let acts = plain(pre).ok()?;
        let dropped = acts.clone().equal_elem(0.0);
        Some((acts, move |gradient: Tensor<2>, _| [Some(gradient.mask_fill(dropped.clone(), 0.0))]))
    });
    kept.ok_or(pre)
}

/// `acts · decoder + bias`, reading only the decoder rows of active latents. `None` if a tensor is not plain. The
/// activations may be tracked; the decoder is a constant.
///
/// # Shapes
/// - acts `[rows, latents]`, decoder `[latents, width]`, bias `[width]`, output `[rows, width]`
pub fn combine(acts: &Tensor<2>, decoder: &Tensor<2>, bias: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    if !acts.is_tracked() {
        return plain_combine(acts, decoder, bias);
    }
    tracked([acts], |[acts]| {
        let output = plain_combine(&acts, decoder, bias)?;
        let turned = (Weight::Plain(decoder.clone().transpose()), None);
        Some((output, move |gradient, _| [rows_back(gradient, &turned)]))
    })
}

/// Position of the first element that is not finite, in the given rows of a matrix on the CPU.
pub fn not_finite(matrix: &Tensor<2>, rows: Range<usize>) -> Option<(usize, usize)> {
    HostMatrix::of(matrix)?.matrix().not_finite(rows)
}

fn plain_combine(acts: &Tensor<2>, decoder: &Tensor<2>, bias: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    let ([rows, latents], [_, width]) = (acts.dims(), decoder.dims());
    let (held, rows_of) = (HostTensor::whole(acts)?, HostMatrix::of(decoder)?);
    let bias = match bias {
        Some(bias) => Some(HostTensor::whole(bias)?),
        None => None,
    };
    let sparse = Sparse::of(held.run(), latents);
    let mut output = held.blank(rows * width);
    times(&sparse, rows_of.matrix(), bias.as_ref().map(HostTensor::run), output.elements());
    Some(output.tensor([rows, width]))
}
