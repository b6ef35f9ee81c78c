//! Experiments as methods of a model.

use hooklens_model::driver::Input;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

use super::{HeadDetection, PromptReport, head_detector, head_scores, test_prompt};
use crate::labeled::LabeledArray;

/// Short experiments on a model: head scores, head detection and prompt tests. Part of the prelude.
pub trait Experiments {
    /// Previous-token, duplicate-token and induction scores of every head on these texts or tokens,
    /// `[pattern, layer, head]`. To score the heads of one layer from a recorded pattern, use the function
    /// [`head_scores`](super::head_scores()), as in the example.
    ///
    /// # Errors
    /// Same as `HookedModel::record`.
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
    fn head_scores(&self, input: impl Into<Input>) -> Result<LabeledArray>;

    /// Scores how closely each head's attention on these tokens matches an expected pattern, averaged over rows,
    /// `[layer, head]` (TransformerLens's `detect_head`). Padding is ignored.
    ///
    /// All queries count, including those with no expected key, so on a text whose second half repeats the first, a
    /// perfect induction head scores about one half. [`HookedTransformer::head_scores`], which the command line prints,
    /// averages only over queries that have an expected key.
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
    /// Same as `HookedModel::record`; `AnalysisError::Shape` for a pattern of the wrong length.
    fn detect_heads(&self, input: impl Into<Input>, detection: &HeadDetection) -> Result<LabeledArray>;

    /// Ranks the tokens of an answer among the model's predictions after a prompt, and lists the `top` most likely
    /// tokens at each position. If the tokenizer keeps spaces, an answer that starts a new word must include the space
    /// before it.
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
    /// Fails if there is no tokenizer or it rejects a text; `Error::NotANumber` if a probability is NaN.
    fn test_prompt(&self, prompt: &str, answer: &str, top: usize) -> Result<PromptReport>;
}

impl Experiments for HookedTransformer {
    fn head_scores(&self, input: impl Into<Input>) -> Result<LabeledArray> {
        head_scores::scores_of(self, input.into())
    }

    fn detect_heads(&self, input: impl Into<Input>, detection: &HeadDetection) -> Result<LabeledArray> {
        head_detector::detect_heads(self, input.into(), detection)
    }

    fn test_prompt(&self, prompt: &str, answer: &str, top: usize) -> Result<PromptReport> {
        test_prompt::test_prompt(self, prompt, answer, top)
    }
}
