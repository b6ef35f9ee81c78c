//! Next-token loss and accuracy.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::norm::widened;
use crate::error::{InputError, Result};
use crate::tokens::Tokens;

/// Mean cross-entropy of next tokens in nats, for logits from any source: an edited run, a lens, or a mixture of two
/// models. For a plain run, this equals [`DecoderModel::loss`](crate::model::DecoderModel::loss). Padding is skipped:
/// each token of a row predicts that row's next unmasked token.
///
/// # Shapes
/// - logits: `[batch, pos, d_vocab]`
/// - output: `[1]`
///
/// ```
/// use hooklens::lm_cross_entropy_loss;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun king drum sun")?;
/// let cold = model.forward(&tokens)? * 0.5;
/// let loss = lm_cross_entropy_loss(&cold, &tokens)?.into_scalar::<f32>();
/// assert!(loss > model.loss(&tokens)?.into_scalar::<f32>());
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// [`InputError::LogitsShape`] if logits and tokens differ in shape, [`InputError::Token`] for a token outside the
/// logits' vocabulary, and [`InputError::NothingToPredict`] if there is no token to predict.
pub fn lm_cross_entropy_loss(logits: &Tensor<3>, tokens: &Tokens) -> Result<Tensor<1>> {
    check(logits, tokens)?;
    let (each, count) = per_token(logits.clone(), tokens);
    Ok(each.sum() / count as f64)
}

/// Like [`lm_cross_entropy_loss`], but for each prediction: 0 at padding and at a row's last token, which predict
/// nothing.
///
/// # Shapes
/// - logits: `[batch, pos, d_vocab]`
/// - output: `[batch, pos - 1]`
///
/// ```
/// use hooklens::lm_loss_per_token;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun king drum sun")?;
/// let losses = lm_loss_per_token(&model.forward(&tokens)?, &tokens)?.into_data().to_vec::<f32>()?;
/// assert!(losses[5] < losses[2]); // second and first `sun` after `drum`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Same as [`lm_cross_entropy_loss`].
pub fn lm_loss_per_token(logits: &Tensor<3>, tokens: &Tokens) -> Result<Tensor<2>> {
    check(logits, tokens)?;
    Ok(per_token(logits.clone(), tokens).0)
}

/// Top-1 accuracy: the fraction of next tokens that have the largest logit.
///
/// # Shapes
/// - logits: `[batch, pos, d_vocab]`
///
/// ```
/// use hooklens::lm_accuracy;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun star king drum sun star")?;
/// let accuracy = lm_accuracy(&model.forward(&tokens)?, &tokens)?;
/// assert!(accuracy >= 3.0 / 8.0); // repeated: three words of the second half
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`lm_cross_entropy_loss`]; also fails if the result can't be read from the device.
pub fn lm_accuracy(logits: &Tensor<3>, tokens: &Tokens) -> Result<f64> {
    check(logits, tokens)?;
    let [batch, pos, _] = logits.dims();
    let best = Tokens::try_from(logits.clone().narrow(1, 0, pos - 1).argmax(2).reshape([batch, pos - 1]))?;
    let (mut right, mut all) = (0, 0);
    for (best, next) in best.ids().iter().zip(next_tokens(tokens)) {
        right += usize::from(next == Some(*best));
        all += usize::from(next.is_some());
    }
    Ok(right as f64 / all as f64)
}

/// Checks that the logits match the tokens, and that there is something to predict.
fn check(logits: &Tensor<3>, tokens: &Tokens) -> Result<()> {
    let [batch, pos, d_vocab] = logits.dims();
    if [batch, pos] != tokens.shape() {
        return Err(InputError::LogitsShape { given: [batch, pos, d_vocab], tokens: tokens.shape() }.into());
    }
    Ok(check_targets(tokens, d_vocab)?)
}

/// Checks that there is a token to predict, and that every predicted token has a logit.
pub(crate) fn check_targets(tokens: &Tokens, d_vocab: usize) -> Result<(), InputError> {
    let next = next_tokens(tokens);
    if next.iter().all(Option::is_none) {
        return Err(InputError::NothingToPredict);
    }
    let predicted = tokens.shape()[1].saturating_sub(1);
    for (at, token) in next.into_iter().enumerate().filter_map(|(at, token)| Some((at, token?))) {
        if token as usize >= d_vocab {
            let (row, position) = (at / predicted, at % predicted + 1);
            return Err(InputError::Token { token: i64::from(token), row, position, d_vocab });
        }
    }
    Ok(())
}

/// The token that each column predicts, `[batch, pos - 1]` in row-major order: the row's next unmasked token. `None`
/// for padding and for a row's last token.
fn next_tokens(tokens: &Tokens) -> Vec<Option<u32>> {
    let [batch, pos] = tokens.shape();
    let mut next = Vec::with_capacity(batch * pos.saturating_sub(1));
    for row in 0..batch {
        let ids = tokens.row(row);
        let Some(mask) = tokens.mask().map(|mask| &mask[row * pos..(row + 1) * pos]) else {
            next.extend(ids.iter().skip(1).copied().map(Some));
            continue;
        };
        let first = next.len();
        next.resize(first + pos.saturating_sub(1), None);
        let real: Vec<usize> = (0..pos).filter(|column| mask[*column]).collect();
        for pair in real.windows(2) {
            next[first + pair[0]] = Some(ids[pair[1]]);
        }
    }
    next
}

/// Cross-entropy of each next token, `[batch, pos - 1]`, 0 where nothing is predicted, and the number of predictions.
pub(crate) fn per_token(logits: Tensor<3>, tokens: &Tokens) -> (Tensor<2>, usize) {
    let [batch, pos, d_vocab] = logits.dims();
    let next = pos - 1;
    let device = logits.device();
    let predictions = widened(logits).narrow(1, 0, next).reshape([batch * next, d_vocab]);
    let log_probs = activation::log_softmax(predictions, 1);
    let next_tokens = next_tokens(tokens);
    let targets: Vec<i32> = next_tokens.iter().map(|next| next.unwrap_or(0) as i32).collect();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch * next, 1]), &device);
    let loss = -log_probs.gather(1, targets).reshape([batch, next]);
    let count = next_tokens.iter().flatten().count();
    if count == next_tokens.len() {
        return (loss, count);
    }
    let counted: Vec<f32> = next_tokens.iter().map(|next| f32::from(u8::from(next.is_some()))).collect();
    let counted = Tensor::<2>::from_data(TensorData::new(counted, [batch, next]), &device);
    // Don't multiply by the mask: the loss at padding may be any value, including infinity.
    (loss.mask_fill(counted.equal_elem(0.0), 0.0), count)
}
