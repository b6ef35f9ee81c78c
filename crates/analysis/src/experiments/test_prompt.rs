//! Ranks and probabilities of an answer's tokens (TransformerLens's `test_prompt`).

use std::fmt;

use burn::tensor::activation;
use hooklens_hooks::Activation;

use hooklens_model::driver::HookedModel;
use hooklens_model::error::{Error, InputError, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::decode_generated;

/// Rank, logit and probability of each token of an answer.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let report = model.test_prompt(prompt, "Mary .", 1)?;
/// assert_eq!(report.answer.len(), 2); // one entry per answer token
/// assert!(report.to_string().contains(r#"answer "Mary"  rank 0"#));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PromptReport {
    /// The prompt's tokens, including the BOS token if one was prepended.
    pub prompt: Vec<String>,
    /// The answer's tokens in order, each predicted from the prompt and the answer tokens before it.
    pub answer: Vec<AnswerToken>,
}

/// One token of an answer.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let report = model.test_prompt(prompt, "John", 2)?;
/// let john = &report.answer[0];
/// assert!(john.rank > 0 && john.probability < 0.1);
/// assert_eq!(john.top[0].0, "Mary");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AnswerToken {
    /// The token's text.
    pub text: String,
    /// The token's rank among all tokens, 0 for the most likely.
    pub rank: usize,
    /// The token's logit.
    pub logit: f32,
    /// The token's probability.
    pub probability: f32,
    /// The most likely tokens at this position: texts, logits and probabilities.
    pub top: Vec<(String, f32, f32)>,
}

/// Implements [`Experiments::test_prompt`](super::Experiments::test_prompt).
pub(super) fn test_prompt(model: &HookedTransformer, prompt: &str, answer: &str, top: usize) -> Result<PromptReport> {
    let tokenizer = model.tokenizer()?;
    let prompt = model.token_row(prompt, None)?;
    let answer = tokenizer.encode(answer)?;
    if answer.is_empty() {
        return Err(InputError::Empty { what: "the answer".into() }.into());
    }
    let logits = model.forward([&prompt[..], &answer].concat())?;
    let from = prompt.len() - 1;
    let logits = logits.narrow(1, from, answer.len());
    let probabilities = Activation::from(activation::softmax(logits.clone(), 2)).to_ndarray()?;
    if probabilities.iter().any(|p| p.is_nan()) {
        return Err(Error::NotANumber { what: "a logit after the prompt".into() });
    }
    let logits = Activation::from(logits).to_ndarray()?;
    let text = |id: usize| decode_generated(tokenizer, &[id as u32], false);
    let one = |(place, id): (usize, &u32)| {
        let own = logits[[0, place, *id as usize]];
        let row = logits.slice(ndarray::s![0, place, ..]);
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let seen = |id: &usize| Ok((text(*id)?, logits[[0, place, *id]], probabilities[[0, place, *id]]));
        Ok(AnswerToken {
            text: text(*id as usize)?,
            rank: row.iter().filter(|other| **other > own).count(),
            logit: own,
            probability: probabilities[[0, place, *id as usize]],
            top: order.iter().take(top).map(seen).collect::<Result<_, InputError>>()?,
        })
    };
    let prompt = prompt.iter().map(|id| text(*id as usize)).collect::<Result<_, _>>()?;
    Ok(PromptReport { prompt, answer: answer.iter().enumerate().map(one).collect::<Result<_>>()? })
}

impl fmt::Display for PromptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "prompt {:?}", self.prompt)?;
        for token in &self.answer {
            let AnswerToken { text, rank, logit, probability, top } = token;
            writeln!(f, "answer {text:?}  rank {rank}  logit {logit:.2}  probability {:.2} %", probability * 100.0)?;
            for (place, (text, logit, probability)) in top.iter().enumerate() {
                writeln!(f, "  {place:>2}  {logit:>7.2}  {:>6.2} %  {text:?}", probability * 100.0)?;
            }
        }
        Ok(())
    }
}
