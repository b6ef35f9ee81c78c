//! [`Metric`]: one number per row of logits.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{Int, Tensor, activation};

use hooklens_hooks::HookError;

use super::model::Patchable;
use crate::activations::TokenChoice;
use crate::error::PatchError;
use hooklens_model::driver::Logits;
use hooklens_model::error::{BoxError, InputError, Result};
use hooklens_model::tokens::single_token;

type OfLast = Arc<dyn Fn(Tensor<2>, usize) -> Tensor<1> + Send + Sync>;
type OfAll = Arc<dyn Fn(Tensor<3>, usize) -> Tensor<1> + Send + Sync>;

/// A function from logits to one number per row. It also receives the index of the example that the rows belong to.
/// Attribution patching differentiates it.
///
/// ```
/// use hooklens::patching::Metric;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let by_name = Metric::logit_diff(&model, "Mary", "John")?;
/// let by_hand = Metric::last(|logits: Tensor<2>, _example| {
///     let [rows, _] = logits.dims();
///     (logits.clone().narrow(1, 1, 1) - logits.narrow(1, 2, 1)).reshape([rows])
/// });
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// In a notebook, define a custom metric in the same cell that differentiates it. A closure runs the code compiled with
/// the cell that defines it, and Burn keeps a separate autodiff graph for each cell.
#[derive(Clone)]
pub struct Metric {
    judge: Judge,
    /// The vocabulary that the tokens are from; `None` for closures.
    vocabulary: Option<Vocabulary>,
}

/// What identifies the meaning of token ids.
#[derive(Clone)]
struct Vocabulary {
    size: usize,
    /// Tokens that were given as text.
    texts: Vec<(String, u32)>,
}

/// Built-in metrics are stored as data, not closures, so that they run in the caller's compilation unit (see
/// [`Metric`]).
#[derive(Clone)]
enum Judge {
    LogitDiff { answer: Vec<u32>, wrong: Vec<u32> },
    Logit(Vec<u32>),
    LogProb(Vec<u32>),
    Last(OfLast),
    All(OfAll),
}

impl Metric {
    /// Creates a metric from the logits at the last position (in an encoder, at the masked token). `judge` maps the
    /// logits `[row, d_vocab_out]` of one example to `[row]`.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let entropy = Metric::last(|logits: Tensor<2>, _example| {
    ///     let log_probs = burn::tensor::activation::log_softmax(logits, 1);
    ///     -(log_probs.clone().exp() * log_probs).sum_dim(1).squeeze_dim::<1>(1)
    /// });
    /// let found = Patching::new(&model, clean, corrupted, entropy)?.attn_head_out_all_pos()?;
    /// assert!(found.baseline[0] > 0.0); // in nats
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn last(judge: impl Fn(Tensor<2>, usize) -> Tensor<1> + Send + Sync + 'static) -> Self {
        Self { judge: Judge::Last(Arc::new(judge)), vocabulary: None }
    }

    /// Creates a metric from the logits at every position. `judge` maps the logits `[row, pos, d_vocab_out]` of one
    /// example to `[row]`. Requires unembedding every position.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// // The mean square of the logits at all positions.
    /// let size = Metric::all(|logits: Tensor<3>, _example| {
    ///     let [rows, pos, vocab] = logits.dims();
    ///     logits.square().reshape([rows, pos * vocab]).mean_dim(1).squeeze_dim::<1>(1)
    /// });
    /// assert!(Patching::new(&model, clean, corrupted, size)?.attn_out()?.baseline[0] > 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn all(judge: impl Fn(Tensor<3>, usize) -> Tensor<1> + Send + Sync + 'static) -> Self {
        Self { judge: Judge::All(Arc::new(judge)), vocabulary: None }
    }

    /// The logit difference of two tokens at the last position, with the same tokens for all examples or one pair per
    /// example.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let towards_mary = Patching::new(&model, clean, corrupted, metric)?.resid_pre()?;
    /// assert!(towards_mary.baseline[0] < 0.0); // Mary gives, so the answer is John
    /// assert!(towards_mary.source.is_some_and(|clean| clean[0] > 0.0));
    /// // With several examples, one token per example.
    /// assert!(Metric::logit_diff(&model, ["Mary", "Tom"], ["John", "Anna"]).is_ok());
    /// assert!(Metric::logit_diff(&model, "Mary John", "Tom").is_err()); // not a single token
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for text that is not a single token and for an id that has no logit.
    pub fn logit_diff(
        model: &impl Patchable,
        answer: impl Into<TokenChoice>,
        wrong: impl Into<TokenChoice>,
    ) -> Result<Self> {
        let mut texts = Vec::new();
        let (answer, wrong) = (ids(model, answer.into(), &mut texts)?, ids(model, wrong.into(), &mut texts)?);
        Ok(Self::of(Judge::LogitDiff { answer, wrong }, model, texts))
    }

    /// The logit of a token at the last position, with the same token for all examples or one per example.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let by_logit = Metric::logit(&model, "Mary")?;
    /// let found = Patching::new(&model, clean, corrupted, by_logit)?.attn_out()?;
    /// let logits = model.forward_with(corrupted, ForwardOptions::new().logits(Logits::Last))?;
    /// let mary = logits.slice([0..1, 0..1, 1..2]).into_scalar::<f32>();
    /// assert!((found.baseline[0] as f32 - mary).abs() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for text that is not a single token and for an id that has no logit.
    pub fn logit(model: &impl Patchable, answer: impl Into<TokenChoice>) -> Result<Self> {
        let mut texts = Vec::new();
        Ok(Self::of(Judge::Logit(ids(model, answer.into(), &mut texts)?), model, texts))
    }

    /// The log-probability of a token as the next token, in nats, with the same token for all examples or one per
    /// example.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let by_log_prob = Metric::log_prob(&model, "Mary")?;
    /// let found = Patching::new(&model, clean, corrupted, by_log_prob)?.attn_out()?;
    /// assert!(found.baseline[0] < found.source.map_or(f64::NAN, |clean| clean[0])); // in nats, at most 0
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for text that is not a single token and for an id that has no logit.
    pub fn log_prob(model: &impl Patchable, answer: impl Into<TokenChoice>) -> Result<Self> {
        let mut texts = Vec::new();
        Ok(Self::of(Judge::LogProb(ids(model, answer.into(), &mut texts)?), model, texts))
    }

    fn of(judge: Judge, model: &impl Patchable, texts: Vec<(String, u32)>) -> Self {
        Self { judge, vocabulary: Some(Vocabulary { size: model.d_vocab_out(), texts }) }
    }

    /// Checks that the metric's tokens are tokens of this model.
    pub(crate) fn check_model(&self, model: &impl Patchable) -> Result<()> {
        let Some(Vocabulary { size, texts }) = &self.vocabulary else { return Ok(()) };
        let other = |given: String, allowed: String| Err(InputError::Setting { name: "metric", given, allowed }.into());
        if *size != model.d_vocab_out() {
            let allowed = format!("a metric for this model, which has {}", model.d_vocab_out());
            return other(format!("for a model with {size} logits"), allowed);
        }
        for (text, id) in texts {
            let own = single_token(model.tokenizer()?.target(), text)?;
            if own != *id {
                let allowed = format!("a metric for this model, where it is {own}");
                return other(format!("for a model where `{text}` is token {id}"), allowed);
            }
        }
        Ok(())
    }

    /// Which logits the metric reads.
    pub(crate) fn needs(&self) -> Logits {
        match self.judge {
            Judge::All(_) => Logits::All,
            _ => Logits::Last,
        }
    }

    /// Checks that the metric has tokens for this number of examples.
    pub(crate) fn check_examples(&self, examples: usize) -> Result<(), PatchError> {
        let lists: &[&[u32]] = match &self.judge {
            Judge::LogitDiff { answer, wrong } => &[answer, wrong],
            Judge::Logit(answer) | Judge::LogProb(answer) => &[answer],
            Judge::Last(_) | Judge::All(_) => &[],
        };
        match lists.iter().map(|ids| ids.len()).find(|given| *given > 1 && *given != examples) {
            Some(given) => Err(PatchError::MetricExamples { given, examples }),
            None => Ok(()),
        }
    }

    /// Computes the metric of each row, `[row]`, from the logits that [`Metric::needs`] selects.
    pub(crate) fn judge(&self, logits: Tensor<3>, example: usize) -> Result<Tensor<1>, PatchError> {
        let [rows, _, d_vocab] = logits.dims();
        let last = |logits: Tensor<3>| logits.reshape([rows, d_vocab]);
        let judged = match &self.judge {
            Judge::LogitDiff { answer, wrong } => {
                let logits = last(logits);
                column(logits.clone(), pick(answer, example)) - column(logits, pick(wrong, example))
            }
            Judge::Logit(answer) => column(last(logits), pick(answer, example)),
            Judge::LogProb(answer) => column(activation::log_softmax(last(logits), 1), pick(answer, example)),
            Judge::Last(judge) => judge(last(logits), example),
            Judge::All(judge) => judge(logits, example),
        };
        match judged.dims() {
            [given] if given == rows => Ok(judged),
            [given] => Err(PatchError::MetricShape { rows, given }),
        }
    }
}

/// Reads the values to the host and fails if one is NaN. `site` describes what was patched in a row.
pub(crate) fn read_values(values: Tensor<1>, example: usize, site: impl Fn(usize) -> String) -> Result<Vec<f64>> {
    let unreadable = |source: BoxError| HookError::Io { name: "the metric".into(), source };
    let data = hooklens_hooks::read(values).map_err(|e| unreadable(e.into()))?.convert::<f64>();
    let values = data.try_into_vec::<f64>().map_err(|e| unreadable(e.into()))?;
    match values.iter().position(|value| value.is_nan()) {
        Some(row) => Err(PatchError::NotANumber { site: site(row), example, value: values[row] }.into()),
        None => Ok(values),
    }
}

/// Resolves token ids: one for all examples, or one per example.
fn ids(model: &impl Patchable, choice: TokenChoice, known: &mut Vec<(String, u32)>) -> Result<Vec<u32>> {
    let mut of_texts = |texts: Vec<String>| -> Result<Vec<u32>> {
        // For translation models, tokens of the target language.
        let tokenizer = model.tokenizer()?.target();
        let ids = texts.iter().map(|text| single_token(tokenizer, text)).collect::<Result<Vec<u32>, _>>()?;
        known.extend(texts.into_iter().zip(ids.iter().copied()));
        Ok(ids)
    };
    let ids = match choice {
        TokenChoice::Text(text) => of_texts(vec![text])?,
        TokenChoice::Texts(texts) => of_texts(texts)?,
        TokenChoice::Id(id) => vec![id],
        TokenChoice::Rows(rows) => rows,
        TokenChoice::Places(_) => {
            let (given, allowed) =
                ("one token per position".into(), "one token, or one per example: only the last position is read");
            return Err(InputError::Setting { name: "answer", given, allowed: allowed.into() }.into());
        }
    };
    let d_vocab = model.d_vocab_out();
    if d_vocab == 0 {
        return Err(InputError::NoHead { head: "unembedding" }.into());
    }
    if let Some(row) = ids.iter().position(|id| *id as usize >= d_vocab) {
        return Err(InputError::Token { token: i64::from(ids[row]), row, position: 0, d_vocab }.into());
    }
    if ids.is_empty() {
        return Err(InputError::Empty { what: "the list of answers".into() }.into());
    }
    Ok(ids)
}

fn pick(ids: &[u32], example: usize) -> u32 {
    if ids.len() == 1 { ids[0] } else { ids[example] }
}

fn column(rows: Tensor<2>, id: u32) -> Tensor<1> {
    let id = Tensor::<1, Int>::from_ints([id as i32], &rows.device());
    rows.select(1, id).squeeze_dim(1)
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metric(of {:?} logits)", self.needs())
    }
}
