//! Generation, one token a row at a time.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, HookError};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::options::GenerateOptions;
use super::sampling::log_prob;
use super::{GeneratedRow, Generation, Stop};
use crate::error::{CacheError, InputError, Result};
use crate::kv_cache::KeyValueCache;
use crate::model::{ForwardOptions, HookedTransformer, Input, Logits};
use crate::tokens::Tokens;

/// What one step gave.
#[derive(Debug)]
pub struct Step {
    /// Each row's next token; none for a row that has ended.
    pub tokens: Vec<Option<u32>>,
    /// What was recorded: at the first step of the prompts, then of the column before the tokens.
    pub recorded: ActivationCache,
    /// The logits the tokens were chosen by, `[batch, d_vocab_out]`, if asked for.
    pub logits: Option<Tensor<2>>,
}

/// An iterator over the steps of a generation: see
/// [`HookedTransformer::generate_steps`](crate::HookedTransformer::generate_steps).
#[derive(Debug)]
pub struct Steps<'m, 'h> {
    model: &'m HookedTransformer,
    options: GenerateOptions<'h>,
    cache: KeyValueCache,
    rows: Vec<Row>,
    /// What to run next.
    next: Tokens,
    /// All columns run so far, a row each; none for padding.
    columns: Vec<Vec<Option<u32>>>,
    pad: u32,
    failed: bool,
}

#[derive(Debug)]
struct Row {
    made: GeneratedRow,
    rng: ChaCha8Rng,
    ended: bool,
}

impl<'m, 'h> Steps<'m, 'h> {
    pub(super) fn new(model: &'m HookedTransformer, input: Input, mut options: GenerateOptions<'h>) -> Result<Self> {
        let prompts = model.token_input(input)?;
        let [batch, len] = prompts.shape();
        let config = model.config();
        options.sampling.check(config.d_vocab_out)?;
        if options.max_new_tokens == 0 {
            let (given, allowed) = ("0".to_string(), "1 or more".to_string());
            return Err(InputError::Setting { name: "max_new_tokens", given, allowed }.into());
        }
        if options.stop_strings.iter().any(String::is_empty) {
            let (given, allowed) = ("an empty text".to_string(), "texts, which every text does not hold".to_string());
            return Err(InputError::Setting { name: "stop_strings", given, allowed }.into());
        }
        if !options.stop_strings.is_empty() {
            model.tokenizer()?;
        }
        if config.d_vocab_out > config.d_vocab {
            return Err(InputError::Options("the model has logits for tokens it has no embedding for").into());
        }
        let d_vocab = config.d_vocab;
        if let Some(token) = options.stop_tokens.iter().find(|token| **token as usize >= d_vocab) {
            let (given, allowed) = (token.to_string(), format!("tokens of the vocabulary of {d_vocab}"));
            return Err(InputError::Setting { name: "stop_tokens", given, allowed }.into());
        }
        let tokenizer = model.tokenizer().ok();
        if options.stop_at_eos {
            options.stop_tokens.extend(tokenizer.and_then(|t| t.eos()));
        }
        let cache = match options.prefix.take() {
            None => KeyValueCache::of_kind(config, batch, options.cache_kind)?,
            Some(prefix) if prefix.batch() == 1 => prefix.fork(batch)?,
            Some(prefix) if prefix.batch() == batch => prefix.fork(1)?,
            Some(prefix) => return Err(CacheError::Batch { cache: prefix.batch(), run: batch }.into()),
        };
        let before = cache.lengths().into_iter().max().unwrap_or(0);
        let longest = (0..batch).map(|row| prompts.real(row).len()).max().unwrap_or(0);
        // The last new token is chosen, never run.
        model.check_length(before + longest + options.max_new_tokens - 1)?;
        if let Some(max_len) = cache.max_len().filter(|max| *max < cache.len() + len + options.max_new_tokens - 1) {
            let needed = cache.len() + len + options.max_new_tokens - 1;
            return Err(CacheError::Full { max_len, needed }.into());
        }
        let row = |row: usize| {
            let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
            rng.set_stream(row as u64);
            let made = GeneratedRow {
                prompt: prompts.real(row),
                new: Vec::new(),
                text: None,
                log_probs: Vec::new(),
                stop: Stop::Length,
            };
            Row { made, rng, ended: false }
        };
        let pad = tokenizer.map_or(0, |t| t.pad());
        let pad = if (pad as usize) < d_vocab { pad } else { 0 };
        let rows = (0..batch).map(row).collect();
        Ok(Self { model, options, cache, rows, next: prompts, columns: vec![Vec::new(); batch], pad, failed: false })
    }

    /// Runs what is next and chooses a token for each row that goes on.
    fn step(&mut self) -> Result<Step> {
        let hooks: Vec<Hook<'_>> = self.options.hooks.iter_mut().map(Hook::reborrow).collect();
        let options = ForwardOptions::new()
            .logits(Logits::Last)
            .hooks(hooks)
            .record(self.options.record.clone())
            .kv_cache(&mut self.cache);
        let output = self.model.run(&self.next, options)?;
        let [batch, len] = self.next.shape();
        for (row, columns) in self.columns.iter_mut().enumerate() {
            let real = |at: &usize| self.next.mask().is_none_or(|mask| mask[row * len + at]);
            columns.extend((0..len).map(|at| Some(self.next.row(row)[at]).filter(|_| real(&at))));
        }
        let logits = output.logits.ok_or(InputError::Options("a step gave no logits"))?;
        let d_vocab = logits.dims()[2];
        let logits = logits.reshape([batch, d_vocab]);
        let values = host(logits.clone())?;
        let mut tokens = Vec::with_capacity(batch);
        for (row, logits) in self.rows.iter_mut().zip(values.chunks(d_vocab)) {
            if row.ended {
                tokens.push(None);
                continue;
            }
            let made = &row.made;
            let token = self.options.sampling.draw(logits, || [&made.prompt[..], &made.new].concat(), &mut row.rng);
            row.made.new.push(token);
            row.made.log_probs.push(log_prob(logits, token));
            tokens.push(Some(token));
            if self.options.stop_tokens.contains(&token) {
                (row.ended, row.made.stop) = (true, Stop::Token(token));
            }
            if let Ok(tokenizer) = self.model.tokenizer() {
                let text = tokenizer.decode(&row.made.new, false)?;
                if let Some(stop) = self.options.stop_strings.iter().find(|stop| text.contains(stop.as_str())) {
                    (row.ended, row.made.stop) = (true, Stop::Text(stop.clone()));
                }
                row.made.text = Some(text);
            }
            row.ended |= row.made.new.len() == self.options.max_new_tokens;
        }
        self.next = self.following(&tokens)?;
        Ok(Step { tokens, recorded: output.cache, logits: self.options.logits.then_some(logits) })
    }

    /// One column: the tokens chosen, padding in rows that have ended.
    fn following(&self, tokens: &[Option<u32>]) -> Result<Tokens> {
        let goes_on = |row: usize| !self.rows[row].ended && tokens[row].is_some();
        let ids = tokens.iter().map(|token| vec![token.unwrap_or(self.pad)]).collect();
        let mask = (0..tokens.len()).map(|row| vec![goes_on(row)]).collect();
        Ok(Tokens::new(ids)?.with_mask(mask)?)
    }

    /// All steps, to the end.
    pub(super) fn collect_all(mut self) -> Result<Generation> {
        let (mut steps, mut logits) = (Vec::new(), Vec::new());
        for step in self.by_ref() {
            let step = step?;
            if !step.recorded.is_empty() {
                steps.push(step.recorded);
            }
            logits.extend(step.logits.map(|logits| logits.unsqueeze_dim::<3>(1)));
        }
        let ids = |row: &Vec<Option<u32>>| row.iter().map(|token| token.unwrap_or(self.pad)).collect();
        let mask = self.columns.iter().map(|row| row.iter().map(Option::is_some).collect()).collect();
        let columns = Tokens::new(self.columns.iter().map(ids).collect())?.with_mask(mask)?;
        let rows = self.rows.into_iter().map(|row| row.made).collect();
        let logits = if logits.is_empty() { None } else { Some(Tensor::cat(logits, 1)) };
        Ok(Generation { rows, columns, steps, logits })
    }
}

impl Iterator for Steps<'_, '_> {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        if self.failed || self.rows.iter().all(|row| row.ended) {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        Some(step)
    }
}

fn host(logits: Tensor<2>) -> Result<Vec<f32>, HookError> {
    let io = |reason: String| HookError::Io { name: "logits".into(), reason };
    let data = logits.try_into_data().map_err(|e| io(e.to_string()))?.convert::<f32>();
    data.try_into_vec::<f32>().map_err(|e| io(format!("{e:?}")))
}
