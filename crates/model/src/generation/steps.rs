//! Step-by-step generation, one token per row at each step.

use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, HookDetails, ModelIdentity, RecordRequest};

use super::Generation;
use super::options::GenerateOptions;
use super::sampler::Sampler;
use crate::config::Layers;
use crate::device::check_room;
use crate::driver::{ForwardOptions, HookedModel, Input, Logits, with_identity};
use crate::error::{CacheError, Error, InputError, Result};
use crate::kv_cache::KeyValueCache;
use crate::model::{DecoderChecks, DecoderInput, HookedTransformer, Identified, Output};
use crate::tokens::Tokens;

/// Result of one generation step.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let options = GenerateOptions::new().record("*hook_z").logits();
/// let mut steps = model.generate_steps("king drum sun king", options)?;
/// if let Some(step) = steps.next().transpose()? {
///     assert_eq!(step.tokens, [Some(model.to_single_token("drum")?)]);
///     assert_eq!(step.recorded.get(hook::z(0))?.dims()[1], 5); // the prompt's positions
///     assert_eq!(step.logits.map(|logits| logits.dims()), Some([1, 63]));
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Step {
    /// Each row's next token; `None` for rows that have ended.
    pub tokens: Vec<Option<u32>>,
    /// Activations recorded at this step. The first step runs the prompts, and each later step runs the tokens chosen
    /// in the step before it.
    pub recorded: ActivationCache,
    /// Logits from which the tokens were chosen, `[batch, d_vocab_out]`, if requested.
    pub logits: Option<Tensor<2>>,
}

/// The cache that a generation fills: its own or the caller's.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per generation")]
enum Filled<'h> {
    Own(KeyValueCache),
    Lent(&'h mut KeyValueCache),
}

impl Filled<'_> {
    fn get(&mut self) -> &mut KeyValueCache {
        match self {
            Filled::Own(cache) => cache,
            Filled::Lent(cache) => cache,
        }
    }
}

/// Iterator over the steps of a generation; see
/// [`HookedTransformer::generate_steps`](crate::model::HookedTransformer::generate_steps).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let steps = model.generate_steps("king drum sun star king", GenerateOptions::new().max_new_tokens(9))?;
/// // Leaving the loop ends the generation; nothing more is run.
/// let words = steps.take(2).map(|step| model.to_string(&[step?.tokens[0].unwrap_or_default()]));
/// assert_eq!(words.collect::<Result<Vec<_>, _>>()?, ["drum", "sun"]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct Steps<'m, 'h> {
    model: &'m HookedTransformer,
    options: GenerateOptions<'h>,
    cache: Filled<'h>,
    sampler: Sampler<'m>,
    /// Tokens to run next.
    next: Tokens,
    /// All columns run so far, per row; `None` for padding.
    columns: Vec<Vec<Option<u32>>>,
    failed: bool,
    /// Whether the cache contains only what this generation ran.
    alone: bool,
    identity: Arc<ModelIdentity>,
}

impl<'m, 'h> Steps<'m, 'h> {
    pub(super) fn new(model: &'m HookedTransformer, input: Input, mut options: GenerateOptions<'h>) -> Result<Self> {
        model.check_head()?;
        let after = options.kv_cache.as_deref();
        let prompts = model.token_input_after(input, &after.map_or(Vec::new(), KeyValueCache::lengths))?;
        let [batch, len] = prompts.shape();
        let config = model.config();
        let (tokenizer, ends) = (model.tokenizer().ok(), model.eos_tokens());
        let mut sampler = Sampler::new(tokenizer, config.d_vocab_out, &prompts, ends, &mut options)?;
        if config.d_vocab_out > config.d_vocab {
            return Err(InputError::NoEmbedding { d_vocab_out: config.d_vocab_out, d_vocab: config.d_vocab }.into());
        }
        let mut filled = match options.kv_cache.take() {
            Some(cache) if !cache.is_frozen() => Filled::Lent(cache),
            Some(prefix) if prefix.batch() == 1 => Filled::Own(prefix.fork(batch)?),
            Some(prefix) if prefix.batch() == batch => Filled::Own(prefix.fork(1)?),
            Some(prefix) => return Err(CacheError::Batch { cache: prefix.batch(), run: batch }.into()),
            None => {
                if let Some(positions) = options.cache_kind.allocated_at_once() {
                    let elements = [batch, positions, config.cached_elements()];
                    let size = model.dtype().size();
                    check_room(&model.device(), elements.into_iter().fold(size, usize::saturating_mul))?;
                }
                Filled::Own(KeyValueCache::of_kind(config, batch, options.cache_kind)?)
            }
        };
        let cache = filled.get();
        let identity = model.identity();
        cache.check_model(&identity)?;
        let held = cache.lengths();
        let before = held.iter().copied().max().unwrap_or(0);
        let of_row = |row: usize| held.get(row).copied().unwrap_or(0) + prompts.real(row).len();
        // The last new token is chosen but never run.
        let to_run = options.max_new_tokens.saturating_sub(1);
        let most = (0..batch).map(of_row).max().unwrap_or(0).saturating_add(to_run);
        model.check_length(most)?;
        options.hooks.iter().try_for_each(|hook| hook.check_reach(most))?;
        options.record.check_reach(most)?;
        if let Some(row) = (0..batch).find(|row| prompts.real(*row).is_empty()) {
            return Err(InputError::Empty { what: format!("row {row}") }.into());
        }
        if options.sampling.has_penalties() && before > 0 {
            sampler.goes_on_from(cache.tokens().ok_or(CacheError::NoTokens { what: "penalties for repeated tokens" })?);
        }
        let needed = (cache.len() + len).saturating_add(to_run);
        if let Some(max_len) = cache.max_len().filter(|max| *max < needed) {
            return Err(CacheError::Full { max_len, needed }.into());
        }
        Ok(Self {
            model,
            options,
            cache: filled,
            sampler,
            next: prompts,
            columns: vec![Vec::new(); batch],
            failed: false,
            alone: before == 0,
            identity,
        })
    }

    /// Runs the next tokens and chooses a token for each row that is still generating.
    fn step(&mut self) -> Result<Step> {
        let hooks: Vec<Hook<'_>> = self.options.hooks.iter_mut().map(Hook::reborrow).collect();
        let options = with_identity(ForwardOptions::new(), &self.identity)
            .logits(Logits::Last)
            .hooks(hooks)
            .record(self.options.record.clone())
            .kv_cache(self.cache.get());
        let output = match self.model.run(&self.next, options) {
            Err(Error::Cache(CacheError::Outgrown { .. })) if self.can_begin_anew() => self.begin_anew()?,
            output => output?,
        };
        let [batch, len] = self.next.shape();
        for (row, columns) in self.columns.iter_mut().enumerate() {
            let real = |at: &usize| self.next.mask().is_none_or(|mask| mask[row * len + at]);
            columns.extend((0..len).map(|at| Some(self.next.row(row)[at]).filter(|_| real(&at))));
        }
        let logits = output.logits.ok_or(InputError::NoOutput { what: "logits" })?;
        let d_vocab = logits.dims()[2];
        let logits = logits.reshape([batch, d_vocab]);
        let tokens = self.sampler.choose(logits.clone(), &self.options)?;
        self.next = self.sampler.following(&tokens)?;
        Ok(Step { tokens, recorded: output.cache, logits: self.options.logits.then_some(logits) })
    }

    /// Whether all columns can be rerun without affecting any hook or recording.
    fn can_begin_anew(&self) -> bool {
        let unseen = self.options.hooks.is_empty() && self.options.record.selects_nothing();
        self.alone && unseen && matches!(self.cache, Filled::Own(_))
    }

    /// Reruns all columns and the next tokens with a new cache, for models whose rotary embedding changes with the
    /// length of the text.
    fn begin_anew(&mut self) -> Result<Output> {
        let [batch, len] = self.next.shape();
        let real = |row: usize, at: usize| self.next.mask().is_none_or(|mask| mask[row * len + at]);
        let (mut ids, mut mask) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
        for (row, columns) in self.columns.iter().enumerate() {
            let next = (0..len).map(|at| Some(self.next.row(row)[at]).filter(|_| real(row, at)));
            let all: Vec<Option<u32>> = columns.iter().copied().chain(next).collect();
            mask.push(all.iter().map(Option::is_some).collect());
            ids.push(all.into_iter().map(Option::unwrap_or_default).collect());
        }
        let mut cache = KeyValueCache::of_kind(self.model.config(), batch, self.options.cache_kind)?;
        let all = Tokens::new(ids)?.with_mask(mask)?;
        let output = self.model.run(&all, ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache))?;
        self.cache = Filled::Own(cache);
        Ok(output)
    }

    /// Runs all remaining steps and collects their results.
    pub(super) fn collect_all(mut self) -> Result<Generation> {
        let (mut steps, mut logits) = (Vec::new(), Vec::new());
        let records = !self.options.record.selects_nothing();
        for step in self.by_ref() {
            let step = step?;
            if records {
                steps.push(step.recorded);
            }
            logits.extend(step.logits.map(|logits| logits.unsqueeze_dim::<3>(1)));
        }
        let kv_cache = match self.cache {
            Filled::Own(cache) => Some(cache),
            Filled::Lent(_) => None,
        };
        self.sampler.generation(self.columns, steps, logits, kv_cache)
    }
}

impl Iterator for Steps<'_, '_> {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        if self.failed || !self.sampler.goes_on() {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        Some(step)
    }
}
