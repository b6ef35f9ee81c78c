//! Cross-entropy of next tokens.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::norm::widened;
use crate::tokens::Tokens;

/// Which next tokens are counted, `[batch, pos - 1]` row by row: those that are real and follow a
/// real one.
pub(crate) fn counted(tokens: &Tokens) -> Vec<bool> {
    let [batch, pos] = tokens.shape();
    match tokens.mask() {
        None => vec![true; batch * pos.saturating_sub(1)],
        Some(mask) => mask.chunks(pos.max(1)).flat_map(|row| row.windows(2).map(|pair| pair[0] && pair[1])).collect(),
    }
}

/// Cross-entropy of each next token, `[batch, pos - 1]`, 0 where it is not counted, and how many
/// are.
pub(crate) fn per_token(logits: Tensor<3>, tokens: &Tokens) -> (Tensor<2>, usize) {
    let [batch, pos, d_vocab] = logits.dims();
    let next = pos - 1;
    let device = logits.device();
    let predictions = widened(logits).narrow(1, 0, next).reshape([batch * next, d_vocab]);
    let log_probs = activation::log_softmax(predictions, 1);
    let counted = counted(tokens);
    // What stands in padding need not be a token there is a logit for.
    let targets = (0..batch).flat_map(|row| &tokens.row(row)[1..]).zip(&counted);
    let targets: Vec<i32> = targets.map(|(id, counted)| if *counted { *id as i32 } else { 0 }).collect();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch * next, 1]), &device);
    let loss = -log_probs.gather(1, targets).reshape([batch, next]);
    let count = counted.iter().filter(|c| **c).count();
    if count == counted.len() {
        return (loss, count);
    }
    let counted: Vec<f32> = counted.iter().map(|c| f32::from(u8::from(*c))).collect();
    let counted = Tensor::<2>::from_data(TensorData::new(counted, [batch, next]), &device);
    // Not a product: padding rows may hold anything, infinities included.
    (loss.mask_fill(counted.equal_elem(0.0), 0.0), count)
}
