//! Activations of many prompts, written to disk as they are made.
//!
//! A run goes batch by batch; a second thread writes one batch while the next is computed, and
//! at most two wait. Memory therefore does not grow with the number of prompts.

mod file;
mod folder;
mod manifest;
mod prompts;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use hooklens_hooks::{Activation, DType, Positions, Record, Selection};

use crate::error::{DumpError, InputError, Result};
use crate::kv_cache::KeyValueCache;
use crate::model::{ForwardOptions, HookedTransformer, Logits};
use crate::tokens::{PaddingSide, Tokens};

pub use prompts::{Prompt, read_prompts};

use manifest::Manifest;
use writer::Sink;

/// What to dump, and how.
///
/// ```
/// use hooklens::dump::Dump;
/// use hooklens::prelude::*;
///
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 5, 6, 7], vec![0, 8, 9]];
/// let done = Dump::new("*hook_pattern").logits(Logits::Last).run(&model, &rows, folder.path().join("out.safetensors"))?;
/// assert_eq!(done.rows, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Dump {
    selection: Selection,
    positions: Positions,
    dtype: DType,
    logits: Logits,
    padding_side: PaddingSide,
    batch_size: usize,
    prefix: Vec<u32>,
    resume: bool,
    settings: Vec<(String, String)>,
}

/// What a dump did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpReport {
    /// Prompts in the output.
    pub rows: usize,
    /// Tokens that were run, padding left out.
    pub tokens: usize,
    /// Bytes of the output's tensors.
    pub bytes: u64,
    /// Batches found finished by an earlier run.
    pub resumed: usize,
    /// Files written, finished ones of an earlier run included.
    pub files: Vec<PathBuf>,
}

/// One computed batch on its way to the disk.
pub(crate) struct Batch {
    pub(crate) number: usize,
    /// Rows of the whole input before this batch.
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) tensors: Vec<(String, Activation)>,
}

/// A batch as a watcher sees it: its tokens and its named tensors.
pub type Watcher<'w> = dyn FnMut(&Tokens, &[(String, Activation)]) + 'w;

impl Dump {
    /// Dumps the points asked for, in `f32`, eight prompts at a time, padded at the right.
    pub fn new(selection: impl Into<Selection>) -> Self {
        Self {
            selection: selection.into(),
            positions: Positions::All,
            dtype: DType::F32,
            logits: Logits::None,
            padding_side: PaddingSide::Right,
            batch_size: 8,
            prefix: Vec::new(),
            resume: false,
            settings: Vec::new(),
        }
    }

    /// Keeps these positions only.
    #[must_use]
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.positions = positions.into();
        self
    }

    /// Element type of the file's floats.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Writes logits too.
    #[must_use]
    pub fn logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }

    /// Where shorter prompts of a batch are padded.
    #[must_use]
    pub fn padding_side(mut self, side: PaddingSide) -> Self {
        self.padding_side = side;
        self
    }

    /// Prompts computed together; each batch of a folder is a shard. At least one.
    #[must_use]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows.max(1);
        self
    }

    /// Tokens that come before every prompt, computed once and not dumped.
    #[must_use]
    pub fn prefix(mut self, tokens: Vec<u32>) -> Self {
        self.prefix = tokens;
        self
    }

    /// Continues a folder that an earlier run left unfinished.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// A setting of the run that a folder's manifest keeps, and that a run continuing the folder
    /// must share: the model's name, say.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_string(), value.to_string()));
        self
    }

    /// Runs the model on each row of token ids and writes what was asked for: to one file if
    /// `out` ends in `.safetensors`, else to a folder of shards with a manifest.
    ///
    /// A file holds a tensor a point, all rows padded to the longest; a shard the same for one
    /// batch. Beside them stand `tokens` and `attention_mask`, `[row, pos]`, and `logits` if asked
    /// for. A file appears when it is whole; a folder's shards one by one.
    ///
    /// # Errors
    /// Bad rows, unknown points, an output that exists already or can't be written. Whatever was
    /// finished stays.
    pub fn run(&self, model: &HookedTransformer, rows: &[Vec<u32>], out: impl AsRef<Path>) -> Result<DumpReport> {
        self.run_watched(model, rows, out, &mut |_, _| {})
    }

    /// [`Dump::run`], showing each batch to `watcher` before it is written.
    ///
    /// # Errors
    /// As [`Dump::run`].
    pub fn run_watched(
        &self,
        model: &HookedTransformer,
        rows: &[Vec<u32>],
        out: impl AsRef<Path>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let out = out.as_ref();
        self.check(model, rows)?;
        let to_file = out.extension().is_some_and(|e| e == "safetensors");
        if to_file {
            if self.resume {
                let reason = "only a folder can be continued; a file appears when it is whole".to_string();
                return Err(DumpError::File { path: out.to_path_buf(), reason }.into());
            }
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            let sink = file::FileSink::new(out, rows.len())?;
            return self.stream(model, rows, &|_| longest, 0, Box::new(sink), watcher);
        }
        let manifest = Manifest::new(self, rows);
        let sink = folder::FolderSink::open(out, manifest, self.resume)?;
        let finished = sink.finished();
        let longest_of = |batch: &[Vec<u32>]| batch.iter().map(Vec::len).max().unwrap_or(0);
        self.stream(model, rows, &longest_of, finished, Box::new(sink), watcher)
    }

    /// Everything that can be wrong is found before the first batch, not in the middle.
    fn check(&self, model: &HookedTransformer, rows: &[Vec<u32>]) -> Result<()> {
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of prompts".into() }.into());
        }
        self.selection.resolve(model.catalog())?;
        for (number, row) in rows.iter().enumerate() {
            if row.is_empty() {
                return Err(InputError::Empty { what: format!("prompt {number}") }.into());
            }
            let whole = [&self.prefix[..], row].concat();
            model.check_length(whole.len())?;
            model.check_tokens(&Tokens::new(vec![whole])?).map_err(|error| in_row(error, number))?;
        }
        Ok(())
    }

    fn stream(
        &self,
        model: &HookedTransformer,
        rows: &[Vec<u32>],
        padded_len: &dyn Fn(&[Vec<u32>]) -> usize,
        finished: usize,
        sink: Box<dyn Sink>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let mut prefix = self.prefilled(model)?;
        let mut writer = writer::Writer::start(sink);
        let mut tokens_run = 0;
        for (number, batch) in rows.chunks(self.batch_size).enumerate() {
            if number < finished {
                continue;
            }
            let tokens = self.padded(model, batch, padded_len(batch))?;
            let tensors = match self.compute(model, &tokens, prefix.as_mut()) {
                Ok(tensors) => tensors,
                Err(error) => {
                    // Batches already handed over still reach the disk.
                    writer.finish()?;
                    return Err(error);
                }
            };
            watcher(&tokens, &tensors);
            tokens_run += batch.iter().map(Vec::len).sum::<usize>();
            let first_row = number * self.batch_size;
            if !writer.send(Batch { number, first_row, rows: batch.len(), tensors }) {
                break;
            }
        }
        let mut report = writer.finish()?;
        report.rows = rows.len();
        report.tokens = tokens_run;
        report.resumed = finished;
        Ok(report)
    }

    /// The prefix, computed once for all batches.
    fn prefilled(&self, model: &HookedTransformer) -> Result<Option<KeyValueCache>> {
        if self.prefix.is_empty() {
            return Ok(None);
        }
        let mut cache = model.prefill(vec![self.prefix.clone()])?;
        cache.freeze();
        Ok(Some(cache))
    }

    /// A batch as the model runs it.
    fn padded(&self, model: &HookedTransformer, batch: &[Vec<u32>], len: usize) -> Result<Tokens> {
        let pad = model.tokenizer().map_or(0, |t| t.pad());
        let pad = if (pad as usize) < model.config().d_vocab { pad } else { 0 };
        Ok(Tokens::padded_to(batch, len, pad, self.padding_side)?)
    }

    fn compute(
        &self,
        model: &HookedTransformer,
        tokens: &Tokens,
        prefix: Option<&mut KeyValueCache>,
    ) -> Result<Vec<(String, Activation)>> {
        let [batch, len] = tokens.shape();
        let kept = self.positions.resolve(len)?;
        let record = Record::new(self.selection.clone()).positions(self.positions.clone()).dtype(self.dtype);
        let mut options = ForwardOptions::new().logits(self.logits).record(record);
        if let Some(cache) = prefix {
            options = options.kv_cache(cache);
        }
        let output = model.run(tokens, options)?;

        let mut tensors = Vec::new();
        let column = |value: &dyn Fn(usize) -> i32| {
            let places = (0..batch).flat_map(|row| kept.clone().map(move |at| row * len + at));
            let data = TensorData::new(places.map(value).collect::<Vec<i32>>(), [batch, kept.len()]);
            Activation::from(Tensor::<2, Int>::from_data(data, &Device::flex()))
        };
        let mask = tokens.mask();
        tensors.push(("tokens".to_string(), column(&|at| tokens.ids()[at] as i32)));
        tensors.push(("attention_mask".to_string(), column(&|at| i32::from(mask.is_none_or(|mask| mask[at])))));
        if let Some(logits) = output.logits {
            let logits = Activation::from(logits).cast(self.dtype);
            let all = self.logits == Logits::All;
            tensors.push(("logits".to_string(), if all { logits.narrow(1, kept.start, kept.end) } else { logits }));
        }
        tensors.extend(output.cache.iter().map(|(name, activation)| (name.to_string(), activation.clone())));
        Ok(tensors)
    }

    /// Everything that makes two runs the same, for the manifest.
    pub(crate) fn fingerprint(&self) -> HashMap<String, String> {
        let mut all: HashMap<_, _> = self.settings.iter().cloned().collect();
        all.insert("hooks".into(), format!("{:?}", self.selection));
        all.insert("positions".into(), self.positions.to_string());
        all.insert("dtype".into(), self.dtype.to_string());
        all.insert("logits".into(), format!("{:?}", self.logits).to_lowercase());
        all.insert("padding_side".into(), format!("{:?}", self.padding_side).to_lowercase());
        all.insert("batch_size".into(), self.batch_size.to_string());
        all.insert("prefix_tokens".into(), format!("{:?}", self.prefix));
        all
    }
}

/// The error of a token, naming the prompt it is in rather than row 0 of a batch of one.
fn in_row(error: InputError, number: usize) -> InputError {
    match error {
        InputError::Token { token, position, d_vocab, .. } => {
            InputError::Token { token, row: number, position, d_vocab }
        }
        other => other,
    }
}
