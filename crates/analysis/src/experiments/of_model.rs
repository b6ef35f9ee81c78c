//! Experiments as methods of a model.

use hooklens_model::driver::Input;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

use super::{HeadDetection, PromptReport, head_detector, head_scores, test_prompt};
use crate::labeled::LabeledArray;

/// Short experiments on a model: scores of heads, tests of prompts. Part of the prelude.
pub trait Experiments {
    /// The [`HeadScores`] of every head on these tokens, `[pattern, layer, head]`: `previous token`, `duplicate token`,
    /// `induction`.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let scores = model.head_scores("king drum sun star king drum sun star")?;
    /// let best = scores.largest(1);
    /// println!("{}: L{}H{} {:.2}", best[0].0[0], best[0].0[1], best[0].0[2], best[0].1);
    /// assert_eq!(scores.values().shape(), [3, 2, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::record`].
    fn head_scores(&self, input: impl Into<Input>) -> Result<LabeledArray>;

    /// TransformerLens's `detect_head`: how much each head attends where it is expected to on these tokens, `[layer, head]`,
    /// the mean over rows. Padding is no part of a row.
    ///
    /// All queries count, also those that have no such place; so on a text whose first half has nothing to look back to,
    /// a perfect induction head comes to one half. [`HookedTransformer::head_scores`] counts the queries that have one,
    /// and is what the command line prints.
    ///
    /// ```
    /// use hooklens::experiments::{HeadDetection, HeadPattern};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let found = model.detect_heads("king drum sun star king drum sun", &HeadDetection::new(HeadPattern::Induction))?;
    /// let (head, score) = &found.largest(1)[0];
    /// println!("L{}H{}: {score:.2}", head[0], head[1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::record`]; [`AnalysisError::Shape`] for a pattern of another length.
    fn detect_heads(&self, input: impl Into<Input>, detection: &HeadDetection) -> Result<LabeledArray>;

    /// How much each head attends from one position to others, `[layer, head]`: the sum over the
    /// positions looked at, the mean over rows. Positions count a row's real tokens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let to_mary = model.attention_between(prompt, 14, &[2])?;
    /// println!("{:?}", to_mary.largest(2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::record`]; [`AnalysisError::Shape`] for positions a row lacks.
    fn attention_between(&self, input: impl Into<Input>, from: usize, to: &[usize]) -> Result<LabeledArray>;

    /// Ranks an answer's tokens among the model's predictions after a prompt, with the `top` most
    /// likely tokens there. An answer that begins a new word needs the space before it where the
    /// tokenizer keeps spaces.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let report = model.test_prompt("When Mary and John went to the store, John gave a drink to", "Mary", 5)?;
    /// assert_eq!(report.answer[0].rank, 0);
    /// println!("{report}");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// No tokenizer, or a text it refuses; [`Error::NotANumber`] for logits that give no probabilities.
    fn test_prompt(&self, prompt: &str, answer: &str, top: usize) -> Result<PromptReport>;
}

impl Experiments for HookedTransformer {
    fn head_scores(&self, input: impl Into<Input>) -> Result<LabeledArray> {
        head_scores::scores_of(self, input.into())
    }

    fn detect_heads(&self, input: impl Into<Input>, detection: &HeadDetection) -> Result<LabeledArray> {
        head_detector::detect_heads(self, input.into(), detection)
    }

    fn attention_between(&self, input: impl Into<Input>, from: usize, to: &[usize]) -> Result<LabeledArray> {
        head_detector::attention_between(self, input.into(), from, to)
    }

    fn test_prompt(&self, prompt: &str, answer: &str, top: usize) -> Result<PromptReport> {
        test_prompt::test_prompt(self, prompt, answer, top)
    }
}
