//! How well a dictionary stands for the activations it was made for.

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
pub use share::EvaluationShare;
use sums::Losses;
pub(crate) use sums::Sums;

/// What is measured, and on what.
///
/// ```
/// use hooklens::features::EvaluateOptions;
/// let options = EvaluateOptions::new().batch_size(8).leaving_out([0]); // without tokens 0
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EvaluateOptions {
    batch_size: usize,
    /// What the dictionary says, unless given.
    left_out: Option<Vec<u32>>,
    cosines: bool,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self { batch_size: 16, left_out: None, cosines: true }
    }
}

impl EvaluateOptions {
    /// Ids of the tokens that are left out.
    fn left_out(&self, model: &HookedTransformer, dictionary: &Dictionary) -> Result<Vec<u32>> {
        match &self.left_out {
            Some(ids) => Ok(ids.clone()),
            None => dictionary.metadata().exclude_special_tokens.ids(model),
        }
    }

    /// 16 prompts at a time, all tokens but those that the dictionary says it was trained without.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prompts run together.
    pub fn batch_size(mut self, prompts: usize) -> Self {
        self.batch_size = prompts.max(1);
        self
    }

    /// Leaves these tokens out of every measure, and their activations as they are, instead of those that the
    /// dictionary's files say ([`Metadata::exclude_special_tokens`](super::Metadata::exclude_special_tokens)): `[]` for
    /// none.
    pub fn leaving_out(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = Some(tokens.into_iter().collect());
        self
    }

    /// Whether decoder rows are compared with each other, which takes time with the square of their number.
    pub fn cosines(mut self, cosines: bool) -> Self {
        self.cosines = cosines;
        self
    }
}

/// Measures a dictionary on prompts of token ids; `progress` is told of prompts done. Prompts begin as those did that it
/// was trained on: [`Metadata::prepend_bos`](super::Metadata::prepend_bos) says how.
///
/// ```
/// use hooklens::features::{Dictionary, EvaluateOptions, evaluate};
/// use hooklens::prelude::*;
/// # use hooklens::features::{DictionaryWeights, Metadata};
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let device = Device::flex();
/// # let eye = Tensor::<2>::eye(64, &device);
/// # let weights = DictionaryWeights {
/// #     encoder: Tensor::cat(vec![eye.clone(), -eye.clone()], 1), encoder_bias: Tensor::zeros([128], &device),
/// #     decoder: Tensor::cat(vec![eye.clone(), -eye], 0), decoder_bias: Tensor::zeros([64], &device), skip: None,
/// # };
/// # let sae = Dictionary::new("exact", weights)?.with_metadata(Metadata::at("blocks.2.hook_resid_post"));
/// let prompts = model.to_tokens("When Mary and John went to the store, John gave a drink to")?;
/// let measured = evaluate(&model, &sae, &[prompts.row(0).to_vec()], &EvaluateOptions::new(), |_| {})?;
/// assert!((measured.explained_variance - 1.0).abs() < 1e-6 && (measured.loss_recovered - 1.0).abs() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Those of [`SpliceDictionary::splice_dictionary`](super::SpliceDictionary::splice_dictionary); prompts that the model can't run, or of which nothing is left.
pub fn evaluate(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<Evaluation> {
    EvaluationShare::of(model, dictionary, prompts, options, progress)?.evaluation()
}

/// Measures transcoders of all layers, a set or a cross-layer transcoder, on prompts of token ids: what each layer's
/// reconstruction misses of what its MLP writes, and what the model loses with all of them in the places of the MLPs.
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
/// As [`evaluate`]; those of [`SpliceDictionary::splice_transcoders`](super::SpliceDictionary::splice_transcoders).
pub fn evaluate_transcoders(
    model: &HookedTransformer,
    transcoders: &Transcoders,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<SetEvaluation> {
    EvaluationShare::of_transcoders(model, transcoders, prompts, options, progress)?.set_evaluation()
}

/// Activations of some prompts that were run together.
struct Batch<'b> {
    cache: &'b ActivationCache,
    /// Whether each place is measured, and how many of them are a prompt's.
    counted: &'b [bool],
    len: usize,
}

impl Batch<'_> {
    /// A point's activations, `[row, width]`.
    fn rows(&self, point: &str, width: usize) -> Result<Tensor<2>> {
        Ok(self.cache.activation(point)?.reshape(&[self.counted.len(), width]).to_tensor::<2>()?)
    }
}

/// Runs a model on prompts, alone, with dictionaries and with zeros in the places of what they write, and gives losses.
fn run(
    [model, spliced]: [&HookedTransformer; 2],
    sites: &[[&str; 2]],
    prompts: &[Vec<u32>],
    (options, left_out): (&EvaluateOptions, &[u32]),
    mut each: impl FnMut(&Batch<'_>) -> Result<()>,
    mut progress: impl FnMut(usize),
) -> Result<Losses> {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    let points: Vec<&str> = sites.iter().flatten().copied().collect();
    let zeros = || sites.iter().map(|[_, write]| at(*write).edit_any(|x, _| Ok(Some(x.zeros_like()))));
    let (mut losses, mut done) = (Losses::default(), 0);
    for batch in prompts.chunks(options.batch_size) {
        let tokens = Tokens::padded(batch, pad, PaddingSide::Right)?;
        let [_, len] = tokens.shape();
        let real = |at: usize| tokens.mask().is_none_or(|mask| mask[at]);
        let counted: Vec<bool> =
            tokens.ids().iter().enumerate().map(|(at, id)| real(at) && !left_out.contains(id)).collect();
        // Of single tokens there is no next one to predict.
        let predicts = batch.iter().any(|row| row.len() > 1);
        let with_losses = || match predicts {
            true => ForwardOptions::new().loss_per_token(),
            false => ForwardOptions::new(),
        };
        let plain = model.run(&tokens, with_losses().record(Record::new(&points[..])))?;
        let with = spliced.run(&tokens, with_losses())?;
        let zeroed = model.run(&tokens, with_losses().hooks(zeros()))?;
        each(&Batch { cache: &plain.cache, counted: &counted, len })?;

        let logits =
            |run: &hooklens_model::model::Output| run.logits.clone().ok_or(InputError::NoOutput { what: "logits" });
        if let [Some(a), Some(b), Some(c)] = [&plain, &with, &zeroed].map(|run| run.loss_per_token.clone()) {
            losses.add_losses([a, b, c], &counted, &real, len);
        }
        losses.add_divergences([logits(&plain)?, logits(&with)?, logits(&zeroed)?], &counted);
        done += batch.len();
        progress(done);
    }
    Ok(losses)
}
