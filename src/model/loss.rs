//! Cross-entropy of next tokens.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::norm::widened;
use crate::tokens::Tokens;

/// Cross-entropy of each next token, `[batch, pos - 1]`, 0 where it or its predecessor is
/// padding, and how many were counted.
pub(crate) fn per_token(logits: Tensor<3>, tokens: &Tokens) -> (Tensor<2>, usize) {
    let [batch, pos, d_vocab] = logits.dims();
    let next = pos - 1;
    let device = logits.device();
    let predictions = widened(logits).narrow(1, 0, next).reshape([batch * next, d_vocab]);
    let log_probs = activation::log_softmax(predictions, 1);
    let targets: Vec<i32> = (0..batch).flat_map(|row| tokens.row(row)[1..].iter().map(|id| *id as i32)).collect();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch * next, 1]), &device);
    let loss = -log_probs.gather(1, targets).reshape([batch, next]);
    let Some(mask) = tokens.mask() else { return (loss, batch * next) };
    let counted: Vec<f32> =
        (mask.chunks(pos)).flat_map(|row| row.windows(2).map(|pair| f32::from(u8::from(pair[0] && pair[1])))).collect();
    let count = counted.iter().filter(|c| **c > 0.0).count();
    let counted = Tensor::<2>::from_data(TensorData::new(counted, [batch, next]), &device);
    // Not a product: padding rows may hold anything, infinities included.
    (loss.mask_fill(counted.equal_elem(0.0), 0.0), count)
}
