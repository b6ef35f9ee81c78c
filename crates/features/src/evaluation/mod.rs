//! Evaluation of how well a dictionary reconstructs activations.

mod intervals;
mod measures;
mod reconstruction;
mod share;
mod sums;

use hooklens_hooks::{ActivationCache, Record, at};

use super::dictionary::Dictionary;
use super::transcoders::Transcoders;
use burn::tensor::Tensor;
use hooklens_model::driver::{ForwardOptions, HookedModel};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::{PaddingSide, Tokens};

pub(crate) use measures::defined;
pub use measures::{Evaluation, SetEvaluation};
pub(crate) use reconstruction::add_reconstructions;
pub use share::EvaluationShard;
use sums::Losses;
pub(crate) use sums::Sums;

/// Options of an evaluation.
///
/// ```
/// use hooklens::features::EvaluateOptions;
/// let options = EvaluateOptions::new().batch_size(8).cosines(false);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EvaluateOptions {
    batch_size: usize,
    cosines: bool,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self { batch_size: 16, cosines: true }
    }
}

impl EvaluateOptions {
    /// Default options: batches of 16 prompts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of prompts per batch.
    pub fn batch_size(mut self, prompts: usize) -> Self {
        self.batch_size = prompts.max(1);
        self
    }

    /// Sets whether decoder rows are compared with each other, which takes time quadratic in their number.
    pub fn cosines(mut self, cosines: bool) -> Self {
        self.cosines = cosines;
        self
    }
}

/// Evaluates a dictionary on prompts of token ids. `progress` is called with the number of prompts done. Prompts should
/// start like the dictionary's training prompts: see [`Metadata::prepend_bos`](super::Metadata::prepend_bos). All
/// tokens are evaluated except those that the dictionary excludes ([`Dictionary::exclude_tokens`]).
///
/// ```
/// use hooklens::features::{Dictionary, EvaluateOptions, evaluate};
/// use hooklens::prelude::*;
/// # use hooklens::features::DictionaryWeights;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let device = Device::flex();
/// # let eye = Tensor::<2>::eye(64, &device);
/// # let weights = DictionaryWeights {
/// #     encoder: Tensor::cat(vec![eye.clone(), -eye.clone()], 1), encoder_bias: Tensor::zeros([128], &device),
/// #     decoder: Tensor::cat(vec![eye.clone(), -eye], 0), decoder_bias: Tensor::zeros([64], &device), skip: None,
/// # };
/// # let sae = Dictionary::new("exact", weights)?.at("blocks.2.hook_resid_post");
/// let prompts = model.to_tokens("When Mary and John went to the store, John gave a drink to")?;
/// let measured = evaluate(&model, &sae, &[prompts.row(0).to_vec()], &EvaluateOptions::new(), |_| {})?;
/// assert!((measured.explained_variance - 1.0).abs() < 1e-6 && (measured.loss_recovered - 1.0).abs() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`SpliceDictionary::splice_dictionary`](super::SpliceDictionary::splice_dictionary); also fails if the model
/// cannot run the prompts, or if there are no prompts.
pub fn evaluate(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<Evaluation> {
    EvaluationShard::of(model, dictionary, prompts, options, progress)?.evaluation()
}

/// Evaluates a set of transcoders or a cross-layer transcoder on prompts of token ids: how well each layer's MLP output
/// is reconstructed, and how much the model's loss rises when all MLPs are replaced.
///
/// ```
/// use hooklens::features::{EvaluateOptions, Transcoders, evaluate_transcoders};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let set = Transcoders::open("embedded:ioi-transcoders")?;
/// let prompts = model.to_tokens("When Mary and John went to the store, John gave a drink to")?;
/// let measured = evaluate_transcoders(&model, &set, &[prompts.row(0).to_vec()], &EvaluateOptions::new(), |_| {})?;
/// assert_eq!(measured.layers.len(), 4);
/// assert!(measured.loss_recovered() > 0.5);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`evaluate`] and [`SpliceDictionary::splice_transcoders`](super::SpliceDictionary::splice_transcoders).
pub fn evaluate_transcoders(
    model: &HookedTransformer,
    transcoders: &Transcoders,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<SetEvaluation> {
    EvaluationShard::of_transcoders(model, transcoders, prompts, options, progress)?.set_evaluation()
}

/// Activations of one batch of prompts.
struct Batch<'b> {
    cache: &'b ActivationCache,
    /// For each token, whether it is evaluated.
    counted: &'b [bool],
    /// Number of tokens per prompt, including padding.
    len: usize,
    /// The group of each prompt, for intervals.
    groups: &'b [usize],
}

impl Batch<'_> {
    /// Activations at a point, `[row, width]`.
    fn rows(&self, point: &str, width: usize) -> Result<Tensor<2>> {
        Ok(self.cache.activation(point)?.reshape(&[self.counted.len(), width]).to_tensor::<2>()?)
    }
}

/// Runs a model on prompts three times and accumulates losses: unchanged, with dictionaries, and with zeros at the
/// points that the dictionaries write. Each of `pairs` holds the point that a dictionary reads and the point that it
/// writes.
fn run(
    [model, spliced]: [&HookedTransformer; 2],
    pairs: &[[&str; 2]],
    mut prompts: impl Iterator<Item = Result<Vec<u32>>>,
    (options, left_out): (&EvaluateOptions, &[u32]),
    mut each: impl FnMut(&Batch<'_>) -> Result<()>,
) -> Result<Losses> {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    let points: Vec<&str> = pairs.iter().flatten().copied().collect();
    let zeros = || pairs.iter().map(|[_, write]| at(*write).edit_any(|x, _| Ok(Some(x.zeros_like()))));
    let mut losses = Losses::default();
    loop {
        let batch = prompts.by_ref().take(options.batch_size).collect::<Result<Vec<_>>>()?;
        if batch.is_empty() {
            return Ok(losses);
        }
        let tokens = Tokens::padded(&batch, pad, PaddingSide::Right)?;
        let [_, len] = tokens.shape();
        let real = |at: usize| tokens.mask().is_none_or(|mask| mask[at]);
        let counted: Vec<bool> =
            tokens.ids().iter().enumerate().map(|(at, id)| real(at) && !left_out.contains(id)).collect();
        let groups: Vec<usize> = batch.iter().map(|row| intervals::group_of(row)).collect();
        // Batches of single-token prompts have no next token to predict.
        let predicts = batch.iter().any(|row| row.len() > 1);
        let with_losses = || match predicts {
            true => ForwardOptions::new().loss_per_token(),
            false => ForwardOptions::new(),
        };
        let plain = model.run(&tokens, with_losses().record(Record::new(&points[..])))?;
        let with = spliced.run(&tokens, with_losses())?;
        let zeroed = model.run(&tokens, with_losses().hooks(zeros()))?;
        each(&Batch { cache: &plain.cache, counted: &counted, len, groups: &groups })?;

        let logits =
            |run: &hooklens_model::model::Output| run.logits.clone().ok_or(InputError::NoOutput { what: "logits" });
        if let [Some(a), Some(b), Some(c)] = [&plain, &with, &zeroed].map(|run| run.loss_per_token.clone()) {
            losses.add_losses([a, b, c], &counted, &real, &groups);
        }
        losses.add_divergences([logits(&plain)?, logits(&with)?, logits(&zeroed)?], &counted, &groups);
    }
}
