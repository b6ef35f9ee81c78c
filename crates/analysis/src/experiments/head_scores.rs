//! Previous-token, duplicate-token and induction scores of attention heads (Olsson et al. 2022).

use hooklens_hooks::Activation;
use ndarray::{Array3, Axis, stack};

use crate::error::AnalysisError;
use crate::labeled::{LabeledArray, LabeledAxis, matching};
use hooklens_model::config::Layers;
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::{Error, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::Tokens;

/// A head's mean attention to the previous token, to duplicate tokens and to induction targets, each from 0 to 1.
///
/// A score is the sum of `pattern[query, key]` over a query's matching keys, averaged over the queries that have any.
/// Only keys before the query count: if a token repeats the previous token, its own position is not an induction
/// target. BOS tokens count like any other token, and padding is ignored. A score is NaN if no query has matching keys.
///
/// `hooklens dump`, `hooklens attention` and `hooklens heads` print these scores. `HookedTransformer::detect_heads`
/// implements TransformerLens's `detect_head`, which averages over *all* queries, including those without matching
/// keys, so its scores differ and are mostly lower.
///
/// ```
/// use hooklens::experiments::head_scores;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun star king drum sun star")?;
/// let cache = model.record(&tokens, "*hook_pattern")?;
/// let scores = head_scores(cache.activation("pattern0")?, &tokens)?;
/// // Heads of layer 0 attend to the previous token; heads of layer 1 use that to find the token to copy.
/// assert!(scores.iter().any(|head| head.previous_token > 0.4 && head.induction < 0.2));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct HeadScores {
    /// Attention to the previous token: the key `query - 1`.
    pub previous_token: f32,
    /// Attention to earlier occurrences of the query's token: keys below `query` whose token is `tokens[query]`.
    pub duplicate_token: f32,
    /// Attention to tokens after earlier occurrences of the query's token: keys below `query` whose previous token is
    /// `tokens[query]`. These are the tokens that an induction head predicts (Olsson et al. 2022).
    pub induction: f32,
}

/// Scores every head of one layer, given its pattern `[batch, head, query, key]` on `tokens`.
///
/// # Errors
/// Fails if the pattern does not have rank four or cannot be read from its device.
///
/// ```
/// use hooklens::experiments::head_scores;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun star king drum sun star")?;
/// let cache = model.record(&tokens, hook::pattern(1))?;
/// let best = head_scores(cache.activation("pattern1")?, &tokens)?;
/// assert!(best.iter().any(|head| head.induction > 0.6));
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn head_scores(pattern: &Activation, tokens: &Tokens) -> Result<Vec<HeadScores>> {
    let mut sums = HeadSums::default();
    sums.add(pattern, tokens)?;
    Ok(sums.means())
}

/// Implements [`Experiments::head_scores`](super::Experiments::head_scores).
pub(super) fn scores_of(model: &HookedTransformer, input: Input) -> Result<LabeledArray> {
    each_prompt(model, input, |_| ())
}

/// Scores of every head over all prompts, `[pattern, layer, head]`, and over each prompt, `[pattern, layer, head,
/// prompt]`. Prompts with more queries have more weight in the scores over all prompts.
///
/// # Errors
/// Same as [`Experiments::head_scores`](super::Experiments::head_scores).
pub fn head_scores_by_prompt(model: &HookedTransformer, input: Input) -> Result<(LabeledArray, LabeledArray)> {
    let mut prompts = Vec::new();
    let all = each_prompt(model, input, |sums| prompts.push(array_of(sums, model.config().n_heads())))?;
    let views: Vec<_> = prompts.iter().map(|scores| scores.view()).collect();
    let values = stack(Axis(3), &views).map_err(|error| Error::Other(error.into()))?;
    let axes: Vec<_> = all.axes().iter().cloned().chain([LabeledAxis::numbered("prompt", prompts.len())]).collect();
    Ok((all, matching(axes, values.into_dyn())))
}

/// Scores over all prompts. Calls `found` with the sums of each prompt, by layer.
fn each_prompt(model: &HookedTransformer, input: Input, mut found: impl FnMut(&[HeadSums])) -> Result<LabeledArray> {
    let tokens = model.token_input(input)?;
    let (layers, heads): (Vec<usize>, _) = (model.config().attending().collect(), model.config().n_heads());
    let mut sums = vec![HeadSums::default(); layers.len()];
    for row in 0..tokens.shape()[0] {
        let own = Tokens::new(vec![tokens.real(row)])?;
        let cache = model.record(&own, "*hook_pattern")?;
        let mut of_row = vec![HeadSums::default(); layers.len()];
        for ((layer, sums), of_row) in layers.iter().zip(&mut sums).zip(&mut of_row) {
            of_row.add(cache.activation(("pattern", *layer))?, &own)?;
            sums.join(of_row);
        }
        found(&of_row);
    }
    let axes = vec![
        LabeledAxis::new("pattern", PATTERNS),
        LabeledAxis::new("layer", layers.iter().map(usize::to_string)),
        LabeledAxis::numbered("head", heads),
    ];
    Ok(matching(axes, array_of(&sums, heads).into_dyn()))
}

/// Scores as an array `[pattern, layer, head]`.
fn array_of(sums: &[HeadSums], heads: usize) -> Array3<f64> {
    let mut scores = Array3::zeros((PATTERNS.len(), sums.len(), heads));
    for (layer, sums) in sums.iter().enumerate() {
        for (head, own) in sums.means().iter().enumerate() {
            for (pattern, score) in [own.previous_token, own.duplicate_token, own.induction].into_iter().enumerate() {
                scores[[pattern, layer, head]] = f64::from(score);
            }
        }
    }
    scores
}

/// Names of the scores, in order.
const PATTERNS: [&str; 3] = ["previous token", "duplicate token", "induction"];

/// Accumulated scores of one layer's heads over several batches.
#[derive(Debug, Clone, Default)]
pub struct HeadSums {
    /// Sums of each head's scores, in the order of [`PATTERNS`].
    heads: Vec<[f64; 3]>,
    /// Number of queries with a previous token, with a duplicate, and with an induction target.
    counts: [usize; 3],
}

impl HeadSums {
    /// Adds the scores of one batch.
    pub fn add(&mut self, pattern: &Activation, tokens: &Tokens) -> Result<()> {
        let given @ [rows, heads, queries, keys] = pattern.to_tensor::<4>()?.dims();
        let [batch, len] = tokens.shape();
        if [rows, queries, keys] != [batch, len, len] {
            let what = "the pattern".to_string();
            let expected = format!("[{batch}, head, {len}, {len}], to match the tokens");
            return Err(AnalysisError::Shape { what, given: given.to_vec(), expected }.into());
        }
        let pattern = pattern.to_ndarray()?;
        let real = |row: usize, at: usize| tokens.mask().is_none_or(|mask| mask[row * len + at]);
        self.heads.resize(heads, [0.0; 3]);
        for row in 0..batch {
            let ids = tokens.row(row);
            for query in (1..len).filter(|query| real(row, *query)) {
                let earlier: Vec<usize> = (0..query).filter(|key| real(row, *key) && ids[*key] == ids[query]).collect();
                let after: Vec<usize> = earlier.iter().map(|key| key + 1).filter(|key| *key < query).collect();
                let before = if real(row, query - 1) { vec![query - 1] } else { vec![] };
                for (kind, keys) in [before, earlier, after].iter().enumerate().filter(|(_, keys)| !keys.is_empty()) {
                    self.counts[kind] += 1;
                    for (head, sums) in self.heads.iter_mut().enumerate() {
                        let paid: f32 = keys.iter().map(|key| pattern[[row, head, query, *key]]).sum();
                        sums[kind] += f64::from(paid);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the scores of other batches.
    fn join(&mut self, other: &Self) {
        self.heads.resize(other.heads.len().max(self.heads.len()), [0.0; 3]);
        for (own, other) in self.heads.iter_mut().flatten().zip(other.heads.iter().flatten()) {
            *own += other;
        }
        self.counts.iter_mut().zip(other.counts).for_each(|(own, other)| *own += other);
    }

    /// The mean scores over all batches; NaN where no query has a target.
    pub fn means(&self) -> Vec<HeadScores> {
        let mean = |sums: &[f64; 3], kind: usize| match self.counts[kind] {
            0 => f32::NAN,
            count => (sums[kind] / count as f64) as f32,
        };
        let of = |sums: &[f64; 3]| HeadScores {
            previous_token: mean(sums, 0),
            duplicate_token: mean(sums, 1),
            induction: mean(sums, 2),
        };
        self.heads.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;

    #[test]
    fn long_sums_do_not_lose_small_scores() {
        let tokens = Tokens::new(vec![vec![1, 2]]).unwrap();
        let mut sums = HeadSums::default();
        for score in [16_777_216.0].into_iter().chain([1.0; 100]) {
            let pattern = Tensor::<4>::full([1, 1, 2, 2], score, &Device::flex());
            sums.add(&pattern.into(), &tokens).unwrap();
        }
        assert_eq!(sums.means()[0].previous_token, 16_777_316f32 / 101.0);
    }
}
