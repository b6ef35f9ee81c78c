//! Generated pairs.

/// A clean and a corrupted prompt with the same number of tokens, and the tokens that they are scored by.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::prompt_sets::PromptSet;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let pair = PromptSet::Ioi.template().pairs(model.tokenizer()?, 1, 0)?.pairs.remove(0);
/// assert_eq!(model.to_tokens(&*pair.clean)?.row(0).len(), model.to_tokens(&*pair.corrupted)?.row(0).len());
/// assert_eq!(model.to_single_token(&pair.answer)?, pair.answer_id);
/// assert_ne!(pair.answer_id, pair.wrong_id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptPair {
    /// The clean prompt, which the answer follows.
    pub clean: String,
    /// The corrupted prompt.
    pub corrupted: String,
    /// Text of the answer, without a leading space if the tokenizer needs none for the same token.
    pub answer: String,
    /// Token id of the answer.
    pub answer_id: u32,
    /// Text of the wrong answer, written like the answer.
    pub wrong: String,
    /// Token id of the wrong answer.
    pub wrong_id: u32,
}

/// Pairs generated from a [`Template`](super::Template), and what was skipped because of the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptPairs {
    /// The pairs, all different.
    pub pairs: Vec<PromptPair>,
    /// Words and phrases that were not used because they are not single tokens or, for phrases, because the tokenizer
    /// cannot encode them. Words that belong together are joined by a slash.
    pub dropped: Vec<String>,
    /// Number of words and phrases of the template, used or not.
    pub words: usize,
    /// Number of drawn pairs that were skipped because their prompts differ in length, or because the answers are not
    /// different single tokens after both prompts.
    pub skipped: usize,
}
