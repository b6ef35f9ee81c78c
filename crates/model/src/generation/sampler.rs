//! Chooses each row's next token and checks stop conditions.

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, HookError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::on_device;
use super::options::GenerateOptions;
use super::sampling::log_prob;
use super::{GeneratedRow, Generation, Stop};
use crate::device::in_main_memory;
use crate::error::{Error, InputError, Result};
use crate::kv_cache::KeyValueCache;
use crate::tokens::{Tokenizer, Tokens, decode_generated};

/// State of all rows of a generation.
#[derive(Debug)]
pub(crate) struct Sampler<'m> {
    tokenizer: Option<&'m Tokenizer>,
    rows: Vec<RowState>,
    pad: u32,
    /// Tokens that precede each row's new tokens, if they are not the row's prompt.
    begin: Option<Vec<u32>>,
    /// Cached tokens before each row's prompt.
    before: Vec<Vec<u32>>,
    /// Forced first new token of each row.
    first: Option<u32>,
    /// Forced last token of a row that reaches the maximum length.
    last: Option<u32>,
    /// Tokens that are never chosen.
    never: Vec<u32>,
}

#[derive(Debug)]
struct RowState {
    made: GeneratedRow,
    rng: ChaCha8Rng,
    ended: bool,
}

impl<'m> Sampler<'m> {
    /// Creates a state with one row per prompt. Checks the options and adds the model's end-of-sequence tokens to the
    /// stop tokens.
    pub(crate) fn new(
        tokenizer: Option<&'m Tokenizer>,
        d_vocab: usize,
        prompts: &Tokens,
        ends: Vec<u32>,
        options: &mut GenerateOptions<'_>,
    ) -> Result<Self> {
        options.sampling.check(d_vocab)?;
        if options.max_new_tokens == 0 {
            let (given, allowed) = ("0".to_string(), "1 or more".to_string());
            return Err(InputError::Setting { name: "max_new_tokens", given, allowed }.into());
        }
        if options.stop_strings.iter().any(String::is_empty) {
            let (given, allowed) = ("an empty string".to_string(), "non-empty strings".to_string());
            return Err(InputError::Setting { name: "stop_strings", given, allowed }.into());
        }
        if !options.stop_strings.is_empty() && tokenizer.is_none() {
            return Err(InputError::NoTokenizer.into());
        }
        if let Some(token) = options.stop_tokens.iter().find(|token| **token as usize >= d_vocab) {
            let (given, allowed) =
                (token.to_string(), format!("token ids below {d_vocab}, the size of the vocabulary"));
            return Err(InputError::Setting { name: "stop_tokens", given, allowed }.into());
        }
        if let Some(token) = options.first_token.filter(|token| *token as usize >= d_vocab) {
            let (given, allowed) =
                (token.to_string(), format!("a token id below {d_vocab}, the size of the vocabulary"));
            return Err(InputError::Setting { name: "first_token", given, allowed }.into());
        }
        if options.stop_at_eos {
            options.stop_tokens.extend(ends);
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
            RowState { made, rng, ended: false }
        };
        let pad = tokenizer.map_or(0, Tokenizer::pad);
        let pad = if (pad as usize) < d_vocab { pad } else { 0 };
        let rows = (0..prompts.shape()[0]).map(row).collect();
        Ok(Self {
            tokenizer,
            rows,
            pad,
            begin: None,
            before: Vec::new(),
            first: options.first_token,
            last: None,
            never: Vec::new(),
        })
    }

    /// Sets the cached tokens before each row's prompt, which count towards penalties.
    pub(super) fn goes_on_from(&mut self, before: Vec<Vec<u32>>) {
        self.before = before;
    }

    /// Sets the tokens before each row's new tokens, if they differ from its prompt.
    pub(crate) fn begin_with(&mut self, tokens: Vec<u32>) {
        self.begin = Some(tokens);
    }

    /// Sets the forced first and last tokens and the forbidden tokens from the model's files. A first token that was
    /// already set by the options takes precedence.
    pub(crate) fn rules(&mut self, first: Option<u32>, last: Option<u32>, never: &[u32]) {
        (self.first, self.last, self.never) = (self.first.or(first), last, never.to_vec());
    }

    /// Token forced at this step, regardless of the logits.
    fn settled(&self, so_far: usize, most: usize) -> Option<u32> {
        self.last.filter(|_| so_far + 1 == most).or(self.first.filter(|_| so_far == 0))
    }

    /// Whether any row is still generating.
    pub(crate) fn goes_on(&self) -> bool {
        self.rows.iter().any(|row| !row.ended)
    }

    /// Chooses each row's next token; `None` for rows that have ended.
    ///
    /// # Shapes
    /// - logits: `[batch, d_vocab]`
    pub(crate) fn choose(&mut self, logits: Tensor<2>, options: &GenerateOptions<'_>) -> Result<Vec<Option<u32>>> {
        let ruled = self.first.is_some() || self.last.is_some() || !self.never.is_empty();
        // Each row draws from its own random stream, independently of other rows.
        let drawn_for = |row: &RowState| !row.ended && !options.sampling.is_greedy();
        let at = self.rows.iter_mut().map(|row| if drawn_for(row) { row.rng.random() } else { 0.0 });
        let at: Vec<f64> = at.collect();
        let there = match ruled || options.sampling.has_penalties() || in_main_memory(&logits.device()) {
            false => on_device::drawn(&logits, &options.sampling, &at)?,
            true => None,
        };
        let drawn = match there {
            Some(drawn) => drawn,
            None => self.draw(logits, options, &at)?,
        };
        let mut tokens = Vec::with_capacity(self.rows.len());
        for (row, (token, log_prob)) in self.rows.iter_mut().zip(drawn) {
            if row.ended {
                tokens.push(None);
                continue;
            }
            row.made.new.push(token);
            row.made.log_probs.push(log_prob);
            tokens.push(Some(token));
            if options.stop_tokens.contains(&token) {
                (row.ended, row.made.stop) = (true, Stop::Token(token));
            }
            if let Some(tokenizer) = self.tokenizer.filter(|_| !options.stop_strings.is_empty()) {
                let text = decode_generated(tokenizer, &row.made.new, false)?;
                if let Some(stop) = options.stop_strings.iter().find(|stop| text.contains(stop.as_str())) {
                    (row.ended, row.made.stop) = (true, Stop::Text(stop.clone()));
                }
            }
            row.ended |= row.made.new.len() == options.max_new_tokens;
        }
        Ok(tokens)
    }

    /// Chooses each row's token on the host, with its log-probability. Values of rows that have ended are meaningless.
    fn draw(&self, logits: Tensor<2>, options: &GenerateOptions<'_>, at: &[f64]) -> Result<Vec<(u32, f32)>> {
        let d_vocab = logits.dims()[1];
        let logits = host(logits)?;
        let mut drawn = Vec::with_capacity(self.rows.len());
        for (number, logits) in logits.chunks(d_vocab).enumerate() {
            let so_far = self.rows[number].made.new.len();
            if self.rows[number].ended {
                drawn.push((0, 0.0));
                continue;
            }
            if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
                let what = format!("the logit of token {token} in row {number} after {so_far} new tokens");
                return Err(Error::NotANumber { what });
            }
            if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
                let what = format!("every logit in row {number} after {so_far} new tokens");
                return Err(Error::NotANumber { what });
            }
            let token = match self.settled(so_far, options.max_new_tokens) {
                Some(token) => token,
                None => self.draw_one(number, logits, options, at[number]),
            };
            drawn.push((token, log_prob(logits, token)));
        }
        Ok(drawn)
    }

    /// Samples one row's token.
    fn draw_one(&self, number: usize, logits: &[f32], options: &GenerateOptions<'_>, at: f64) -> u32 {
        let row = &self.rows[number];
        let prompt = self.begin.as_deref().unwrap_or(&row.made.prompt);
        let before = self.before.get(number).map_or(&[][..], Vec::as_slice);
        let so_far = || [before, prompt, &row.made.new].concat();
        if self.never.is_empty() {
            return options.sampling.draw(logits, so_far, at);
        }
        let mut allowed = logits.to_vec();
        for token in &self.never {
            if let Some(logit) = allowed.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        options.sampling.draw(&allowed, so_far, at)
    }

    /// The chosen tokens as one column, padded in rows that have ended.
    pub(crate) fn following(&self, tokens: &[Option<u32>]) -> Result<Tokens> {
        let goes_on = |row: usize| !self.rows[row].ended && tokens[row].is_some();
        let ids = tokens.iter().map(|token| vec![token.unwrap_or(self.pad)]).collect();
        let mask = (0..tokens.len()).map(|row| vec![goes_on(row)]).collect();
        Ok(Tokens::new(ids)?.with_mask(mask)?)
    }

    /// Builds the final result; `columns` are the columns that were run, with `None` for padding.
    pub(crate) fn generation(
        self,
        columns: Vec<Vec<Option<u32>>>,
        steps: Vec<ActivationCache>,
        logits: Vec<Tensor<3>>,
        kv_cache: Option<KeyValueCache>,
    ) -> Result<Generation> {
        let ids = |row: &Vec<Option<u32>>| row.iter().map(|token| token.unwrap_or(self.pad)).collect();
        let mask = columns.iter().map(|row| row.iter().map(Option::is_some).collect()).collect();
        let columns = Tokens::new(columns.iter().map(ids).collect())?.with_mask(mask)?;
        let mut rows: Vec<_> = self.rows.into_iter().map(|row| row.made).collect();
        if let Some(tokenizer) = self.tokenizer {
            for row in rows.iter_mut().filter(|row| !row.new.is_empty()) {
                row.text = Some(decode_generated(tokenizer, &row.new, false)?);
            }
        }
        let logits = if logits.is_empty() { None } else { Some(Tensor::cat(logits, 1)) };
        Ok(Generation { rows, columns, steps, logits, kv_cache })
    }
}

/// Copies a matrix to the host, row by row.
pub(super) fn host(logits: Tensor<2>) -> Result<Vec<f32>, HookError> {
    let data = Activation::from(logits).to_data()?.convert::<f32>();
    data.try_into_vec::<f32>().map_err(|e| HookError::Io { name: "logits".into(), source: e.into() })
}
