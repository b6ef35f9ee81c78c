//! The backward pass of a norm layer.

use burn::tensor::Tensor;

use hooklens_model::model::{Norm, widened};

/// Computes the gradient at a norm layer's input, given gradients at its output from several readers.
///
/// Let `c` be the (centered) input, `s` its scale and `y = w c / s + b`. Because `s` depends on `c`, the gradient has
/// no component in the direction of `c`, unless `s` is held constant (`frozen`).
///
/// # Shapes
/// - input: `[batch, pos, d_model]`
/// - output: `[batch, pos, reader, d_model]`, like `gradient`
pub(super) fn through_norm(norm: &Norm, input: &Tensor<3>, gradient: Tensor<4>, frozen: bool) -> Tensor<4> {
    if !norm.is_norm() {
        return gradient;
    }
    let (centered, scale) = norm.centered_and_scale(input.clone());
    let unit = (centered / scale.clone()).unsqueeze_dim::<4>(2);
    let mut back = widened(gradient);
    if let Some(w) = &norm.w {
        back = back * widened(w.val()).unsqueeze();
    }
    if !frozen {
        let along = (back.clone() * unit.clone()).mean_dim(3);
        back = back - unit * along;
    }
    let back = back / scale.unsqueeze_dim::<4>(2);
    if norm.centers() { back.clone() - back.mean_dim(3) } else { back }
}
