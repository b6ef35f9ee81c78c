//! Activations of many prompts, written to disk as they are made.
//!
//! A run goes batch by batch; a second thread writes one batch while the next is computed, and
//! one more may wait. Of the prompts only their token ids stay in memory.
//!
//! ```
//! use hooklens::dump::Dump;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("resid.safetensors");
//! let rows = vec![vec![0, 51, 59], vec![0, 9]];
//! Dump::new("resid_post1").positions(-1).run(&model, &rows, &out)?;
//! let files = hooklens::WeightFiles::open(&[out])?;
//! let shape = |name| files.info(name).map(|info| info.shape.clone());
//! assert_eq!(shape("blocks.1.hook_resid_post"), Some(vec![2, 1, 64])); // [row, pos, d_model]
//! assert_eq!(shape("tokens"), Some(vec![2, 1])); // those of the positions kept
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod folder;
mod manifest;
mod merge;
mod model;
mod part;
mod placing;
mod prompts;
mod writer;

use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use hooklens_hooks::{Activation, ActivationCache, Axis, DType, Filler, HookError, Positions, Record, Selection};

use crate::driver::{ForwardOptions, Input, Logits, RunOutput};
use crate::error::{DumpError, InputError, Result};
use crate::experiments::{Trunk, common_prefix};
use crate::kv_cache::KeyValueCache;
use crate::tokens::{PaddingSide, Tokens};

pub use merge::merge;
pub use model::DumpModel;
pub use part::Part;
pub use prompts::{Prompt, read_prompts};

use manifest::Manifest;
use placing::{Named, Placing, Row, Widths};
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
    share_prefix: bool,
    part: Option<Part>,
    settings: Vec<(String, String)>,
}

/// How many tokens the rows of a batch begin with that it pays to compute by themselves: they
/// cost a pass of their own. A row by itself may share with its neighbors.
fn worth_sharing(rows: &[Vec<u32>], batch: Range<usize>) -> Option<usize> {
    const LEAST_SAVED: usize = 64;
    let (alike, saved) = if batch.len() > 1 {
        let alike = common_prefix(&rows[batch.clone()]);
        (alike, alike * (batch.len() - 1))
    } else {
        let with = |range: Range<usize>| rows.get(range).map_or(0, common_prefix);
        let before = if batch.start > 0 { with(batch.start - 1..batch.end) } else { 0 };
        let alike = before.max(with(batch.start..batch.end + 1));
        (alike, alike)
    };
    (saved >= LEAST_SAVED).then_some(alike)
}

/// What a dump did.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 51, 59, 21], vec![0, 51, 59, 22]];
/// let done = Dump::new("resid_post1").run(&model, &rows, folder.path().join("out"))?;
/// assert_eq!((done.rows, done.tokens, done.resumed), (2, 8, 0));
/// println!("{} bytes in {:?}", done.bytes, done.files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpReport {
    /// Prompts in the output.
    pub rows: usize,
    /// Tokens of the prompts that were run, padding left out.
    pub tokens: usize,
    /// Those of them that did not have to be run, because other prompts begin with the same.
    pub shared: usize,
    /// Bytes of the output's tensors.
    pub bytes: u64,
    /// Batches found finished by an earlier run.
    pub resumed: usize,
    /// Files written, finished ones of an earlier run included.
    pub files: Vec<PathBuf>,
}

/// One computed batch on its way to the disk.
pub(crate) struct Batch {
    number: usize,
    /// Rows of the whole input before this batch.
    first_row: usize,
    placing: Placing,
    tensors: Vec<Named>,
}

impl Batch {
    /// The tensors as an output of these widths holds them.
    fn place(&self, widths: Widths) -> Result<Vec<placing::Tensor>, HookError> {
        self.tensors.iter().map(|named| self.placing.place(named, widths)).collect()
    }
}

/// What a watcher of a dump sees.
///
/// ```
/// use hooklens::dump::{Dump, Seen};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let mut prompts = 0;
/// let mut watcher = |seen: Seen<'_>| match seen {
///     Seen::Batch(tokens, _recorded) => prompts += tokens.shape()[0],
///     _ => {}
/// };
/// let rows = vec![vec![0, 51], vec![0, 9], vec![0, 50]];
/// Dump::new("resid_post1").batch_size(2).run_watched(&model, &rows, folder.path().join("out"), &mut watcher)?;
/// assert_eq!(prompts, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Seen<'b> {
    /// This many prompts were finished by an earlier run.
    Resumed(usize),
    /// A batch was computed: its tokens, and what was recorded of it by name.
    Batch(&'b Tokens, &'b ActivationCache),
}

/// Told what a dump does.
///
/// ```
/// use hooklens::dump::{Dump, Seen, Watcher};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let mut batches = 0;
/// let watcher: &mut Watcher<'_> = &mut |_: Seen<'_>| batches += 1;
/// let rows = [vec![0, 51], vec![0, 9]];
/// Dump::new("z0").batch_size(1).run_watched(&model, &rows, folder.path().join("out"), watcher)?;
/// assert_eq!(batches, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Watcher<'w> = dyn FnMut(Seen<'_>) + 'w;

impl Dump {
    /// Dumps the points asked for, in `f32`, eight prompts at a time, padded at the right.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// Dump::new(["z0", "pattern1"]).run(&model, &[vec![0, 51, 59]], &out)?;
    /// let files = hooklens::WeightFiles::open(&[out])?;
    /// let names: Vec<&str> = files.tensors().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["attention_mask", "blocks.0.attn.hook_z", "blocks.1.attn.hook_pattern", "tokens"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            share_prefix: true,
            part: None,
            settings: Vec::new(),
        }
    }

    /// Keeps these positions of each prompt only, counted from its own first or last token. Of a
    /// range a shorter prompt gives what it has.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// Dump::new("z0").positions(-1).run(&model, &[vec![0, 51, 59], vec![0, 9]], &out)?; // each row's own last
    /// let files = hooklens::WeightFiles::open(&[out])?;
    /// assert_eq!(files.info("blocks.0.attn.hook_z").map(|info| info.shape.clone()), Some(vec![2, 1, 4, 16]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.positions = positions.into();
        self
    }

    /// Element type of the file's floats.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let [wide, narrow] = ["a", "b"].map(|name| folder.path().join(name).with_extension("safetensors"));
    /// let rows = [vec![0, 51, 59]];
    /// let [wide, narrow] = [
    ///     Dump::new("z0").run(&model, &rows, wide)?.bytes,
    ///     Dump::new("z0").dtype(DType::F16).run(&model, &rows, narrow)?.bytes,
    /// ];
    /// assert_eq!(wide - narrow, 3 * 64 * 2); // two bytes an element
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Writes logits too.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// Dump::new("z0").logits(Logits::Last).run(&model, &[vec![0, 51, 59]], &out)?;
    /// let files = hooklens::WeightFiles::open(&[out])?;
    /// assert_eq!(files.info("logits").map(|info| info.shape.clone()), Some(vec![1, 1, 63]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }

    /// Where shorter prompts of a batch are padded.
    ///
    /// ```
    /// use hooklens::dump::{Dump, Seen};
    /// # use hooklens::prelude::*;
    /// # use hooklens::PaddingSide;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let rows = [vec![0, 51, 59], vec![0, 9]];
    /// Dump::new("z0").padding_side(PaddingSide::Left).run_watched(&model, &rows, &out, &mut |seen| {
    ///     if let Seen::Batch(tokens, _) = seen {
    ///         assert_eq!(tokens.mask().map(|mask| mask[3..].to_vec()), Some(vec![false, true, true]));
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn padding_side(mut self, side: PaddingSide) -> Self {
        self.padding_side = side;
        self
    }

    /// Prompts computed together; each batch of a folder is a shard. At least one.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let rows = vec![vec![0, 51], vec![0, 9], vec![0, 50]];
    /// Dump::new("z0").batch_size(2).run(&model, &rows, &out)?;
    /// let names = std::fs::read_dir(&out)?.flatten().map(|file| file.file_name());
    /// let shards = names.filter(|name| name.to_string_lossy().ends_with(".safetensors"));
    /// assert_eq!(shards.count(), 2); // two prompts, then one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows.max(1);
        self
    }

    /// Tokens that come before every prompt, computed once and not dumped.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let instruction = vec![0, 51, 59, 21];
    /// let done = Dump::new("z0").prefix(instruction).run(&model, &[vec![51], vec![9, 50]], &out)?;
    /// assert_eq!(done.tokens, 3); // those of the prompts
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, tokens: Vec<u32>) -> Self {
        self.prefix = tokens;
        self
    }

    /// Whether what the prompts of a batch begin with is computed once (it is unless told
    /// otherwise, where that is worth it). What is written is the same.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// // Eight prompts that begin with the same twelve tokens.
    /// let rows: Vec<Vec<u32>> = (1..9).map(|last| [&[0, 51, 59].repeat(4), &[last][..]].concat()).collect();
    /// let together = Dump::new("z0").run(&model, &rows, folder.path().join("a"))?;
    /// let apart = Dump::new("z0").share_prefix(false).run(&model, &rows, folder.path().join("b"))?;
    /// assert_eq!((together.shared, apart.shared), (7 * 12, 0));
    /// assert_eq!(together.bytes, apart.bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn share_prefix(mut self, share: bool) -> Self {
        self.share_prefix = share;
        self
    }

    /// Continues a folder that an earlier run left unfinished.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let rows = vec![vec![0, 51], vec![0, 9]];
    /// let dump = Dump::new("z0").batch_size(1);
    /// dump.run(&model, &rows, &out)?;
    /// assert!(dump.run(&model, &rows, &out).is_err()); // the folder holds a dump
    /// assert_eq!(dump.resume(true).run(&model, &rows, &out)?.resumed, 2); // batches found done
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Dumps one of several shares of the prompts, to a folder of its own: the same prompts are given to every job,
    /// and [`merge`] makes one dump of the folders.
    ///
    /// ```
    /// use hooklens::dump::{Dump, Part, merge};
    /// use hooklens::prelude::*;
    ///
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let folder = tempfile::tempdir()?;
    /// let rows = vec![vec![0, 5, 6], vec![0, 8, 9], vec![0, 7]];
    /// let parts = [1, 2].map(|index| folder.path().join(format!("part-{index}")));
    /// for (index, part) in parts.iter().enumerate() {
    ///     let dump = Dump::new("*hook_z").batch_size(1).part(Part::new(index + 1, 2)?);
    ///     dump.run(&model, &rows, part)?;
    /// }
    /// assert_eq!(merge(folder.path(), &parts)?.rows, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.part = Some(part);
        self
    }

    /// A setting of the run that a folder's manifest keeps, and that a run continuing the folder
    /// must share: the model's name, say.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let dump = |text| Dump::new("z0").setting("prompts", text).resume(true);
    /// dump("animals").run(&model, &[vec![0, 9]], &out)?;
    /// let told = dump("colors").run(&model, &[vec![0, 9]], &out).unwrap_err().to_string();
    /// assert!(told.contains("was begun with another prompts: animals there, colors now"), "{told}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// for. Padding is zeros (minus infinity in scores). A file appears when it is whole, and then
    /// replaces one of the same name; a folder's shards appear one by one, and a folder that holds
    /// a dump is only ever continued.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let (file, shards) = (folder.path().join("all.safetensors"), folder.path().join("shards"));
    /// let rows = vec![vec![0, 51], vec![0, 9]];
    /// let dump = Dump::new("z0").batch_size(1);
    /// assert_eq!(dump.run(&model, &rows, &file)?.files.len(), 1); // the ending says: one file
    /// assert!(dump.run(&model, &rows, &shards)?.files.len() > 1 && shards.is_dir());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Bad rows ([`DumpError::Row`] names the prompt), unknown points, an output that can't be
    /// written, a folder that holds something else. Whatever was finished stays.
    pub fn run<M: DumpModel>(&self, model: &M, prompts: impl Into<Input>, out: impl AsRef<Path>) -> Result<DumpReport> {
        self.run_watched(model, &model.prompts(prompts.into())?, out, &mut |_| {})
    }

    /// [`Dump::run`], showing each batch to `watcher` before it is written.
    ///
    /// ```
    /// use hooklens::dump::{Dump, Seen};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let mut largest = 0f32;
    /// Dump::new("resid_post1").run_watched(&model, &[vec![0, 51], vec![0, 9]], &out, &mut |seen| {
    ///     if let Seen::Batch(_, recorded) = seen {
    ///         let stream = recorded.get(hook::resid_post(1)).map(|x| x.abs().max().into_scalar::<f32>());
    ///         largest = largest.max(stream.unwrap_or(0.0));
    ///     }
    /// })?;
    /// assert!(largest > 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Dump::run`].
    pub fn run_watched<M: DumpModel>(
        &self,
        model: &M,
        rows: &[Vec<u32>],
        out: impl AsRef<Path>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let out = out.as_ref();
        let to_file = out.extension().is_some_and(|e| e == "safetensors");
        let placed = self.check(model, rows, to_file)?;
        if to_file {
            if self.part.is_some() {
                let reason = "a part goes to a folder, which `merge` makes one with the others".to_string();
                return Err(DumpError::Refused { path: out.to_path_buf(), reason }.into());
            }
            if self.resume {
                let reason = "only a folder can be continued; a file appears when it is whole".to_string();
                return Err(DumpError::Refused { path: out.to_path_buf(), reason }.into());
            }
            let sink = file::FileSink::new(out, rows.len(), Widths::of(placed.iter()))?;
            return self.stream(model, rows, &placed, 0, Box::new(sink), watcher);
        }
        let interventions = model.interventions();
        let settings = match interventions.is_empty() {
            true => self.clone(),
            false => self.clone().setting("interventions", &interventions.join(", ")),
        };
        let manifest = Manifest::new(&settings, model.fingerprint_of_weights()?, rows);
        let sink = folder::FolderSink::open(out, manifest, self.resume)?;
        let finished = sink.finished();
        self.stream(model, rows, &placed, finished, Box::new(sink), watcher)
    }

    /// Everything that can be wrong is found before the first batch, not in the middle. Gives what
    /// is kept of each row.
    fn check<M: DumpModel>(&self, model: &M, rows: &[Vec<u32>], to_file: bool) -> Result<Vec<Row>> {
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of prompts".into() }.into());
        }
        let points = self.selection.resolve(model.catalog())?;
        let routed = points.iter().map(|id| model.catalog().info(*id)).find(|p| p.axes.first() == Some(&Axis::Routed));
        if let Some(point) = routed.filter(|_| to_file) {
            return Err(DumpError::NotRectangular { point: point.name.to_string() }.into());
        }
        if !self.prefix.is_empty() {
            model.check_prompt(&self.prefix, 0)?;
        }
        let checked = |row: &Vec<u32>| -> Result<Row> {
            if row.is_empty() {
                return Err(InputError::Empty { what: "it".into() }.into());
            }
            model.check_prompt(row, self.prefix.len())?;
            Ok(Row { len: row.len(), kept: self.kept(row.len())? })
        };
        let named = |(number, row)| {
            checked(row).map_err(|source| DumpError::Row { number: number + 1, source: Box::new(source) }.into())
        };
        rows.iter().enumerate().map(named).collect()
    }

    /// The positions kept of a prompt of `len` tokens.
    fn kept(&self, len: usize) -> Result<Range<usize>, HookError> {
        let Positions::Range(start, end) = self.positions else { return self.positions.resolve(len) };
        let place = |n: isize| if n < 0 { n + len as isize } else { n }.clamp(0, len as isize) as usize;
        let (start, end) = (start.map_or(0, place), end.map_or(len, place));
        if start < end {
            return Ok(start..end);
        }
        Err(HookError::Positions { asked: self.positions.to_string(), row: None, len, cached: 0 })
    }

    /// The batches to compute of so many prompts.
    fn share(&self, rows: usize) -> Range<usize> {
        let count = rows.div_ceil(self.batch_size);
        self.part.map_or(0..count, |part| part.batches(count))
    }

    /// How many of so many prompts are in them.
    pub(crate) fn own_rows(&self, rows: usize) -> usize {
        let (share, row) = (self.share(rows), |batch: usize| (batch * self.batch_size).min(rows));
        row(share.end) - row(share.start)
    }

    fn stream<M: DumpModel>(
        &self,
        model: &M,
        rows: &[Vec<u32>],
        placed: &[Row],
        finished: usize,
        sink: Box<dyn Sink>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let mut prefix = self.prefilled(model)?;
        let mut trunk = self.trunk(model)?;
        let writer = writer::Writer::start(sink);
        let mut tokens_run = 0;
        let share = self.share(rows.len());
        let skipped = (finished * self.batch_size).min(self.own_rows(rows.len()));
        if skipped > 0 {
            watcher(Seen::Resumed(skipped));
        }
        let batches = rows.chunks(self.batch_size).zip(placed.chunks(self.batch_size)).enumerate();
        for (number, (batch, placed)) in batches.take(share.end).skip(share.start + finished) {
            let mut placing = Placing::new(placed.to_vec(), self.padding_side, self.prefix.len(), &self.positions);
            let first_row = number * self.batch_size;
            let computed = match (&mut trunk, worth_sharing(rows, first_row..first_row + batch.len())) {
                (Some(trunk), Some(shared)) => {
                    placing.padded_right();
                    self.compute_shared(model, batch, trunk, shared, watcher)
                }
                _ => self.compute(model, batch, &placing, prefix.as_mut(), watcher),
            };
            let tensors = match computed {
                Ok(tensors) => tensors,
                Err(error) => {
                    // Batches already handed over still reach the disk.
                    writer.finish()?;
                    return Err(error);
                }
            };
            tokens_run += batch.iter().map(Vec::len).sum::<usize>();
            if !writer.send(Batch { number, first_row, placing, tensors }) {
                break;
            }
        }
        let mut report = writer.finish()?;
        report.rows = self.own_rows(rows.len());
        report.tokens = tokens_run;
        report.resumed = finished;
        report.shared = trunk.map_or(0, |trunk| trunk.saved());
        Ok(report)
    }

    /// What computes shared beginnings once, if anything is to be shared and can be.
    fn trunk<'m, M: DumpModel>(&self, model: &'m M) -> Result<Option<Trunk<'m>>> {
        let points = self.selection.resolve(model.catalog())?;
        let routed = points.iter().any(|id| model.catalog().info(*id).axes.first() == Some(&Axis::Routed));
        let can = self.share_prefix && self.prefix.is_empty() && !routed;
        let record = Record::new(self.selection.clone()).dtype(self.dtype);
        Ok(if can { model.sharing(record, self.logits) } else { None })
    }

    /// The prefix, computed once for all batches.
    fn prefilled<M: DumpModel>(&self, model: &M) -> Result<Option<KeyValueCache>> {
        if self.prefix.is_empty() {
            return Ok(None);
        }
        Ok(Some(model.behind(&self.prefix)?))
    }

    fn compute<M: DumpModel>(
        &self,
        model: &M,
        batch: &[Vec<u32>],
        placing: &Placing,
        prefix: Option<&mut KeyValueCache>,
        watcher: &mut Watcher<'_>,
    ) -> Result<Vec<Named>> {
        let pad = model.filler();
        let tokens = Tokens::padded(batch, pad, self.padding_side)?;
        let record = Record::new(self.selection.clone()).positions(placing.recorded()).dtype(self.dtype);
        let mut options = ForwardOptions::new().logits(self.logits).record(record);
        if let Some(cache) = prefix {
            options = options.kv_cache(cache);
        }
        let mut output = model.run(M::batch(tokens.clone()), options)?;
        let (logits, cache) = (M::logits(&mut output), output.cache().take());
        watcher(Seen::Batch(&tokens, &cache));
        self.named(&tokens, logits, &cache, false, pad)
    }

    /// A batch whose prompts begin alike: padded at the right, every position recorded.
    fn compute_shared<M: DumpModel>(
        &self,
        model: &M,
        batch: &[Vec<u32>],
        trunk: &mut Trunk<'_>,
        shared: usize,
        watcher: &mut Watcher<'_>,
    ) -> Result<Vec<Named>> {
        let pad = model.filler();
        let tokens = Tokens::padded(batch, pad, PaddingSide::Right)?;
        let output = trunk.run_sharing(batch, shared)?;
        watcher(Seen::Batch(&tokens, &output.cache));
        self.named(&tokens, output.logits, &output.cache, true, pad)
    }

    /// The tensors of a batch; `every` tells whether recordings hold every column.
    fn named(
        &self,
        tokens: &Tokens,
        logits: Option<Tensor<3>>,
        cache: &ActivationCache,
        every: bool,
        pad: u32,
    ) -> Result<Vec<Named>> {
        let shape = tokens.shape();
        let integers = |values: Vec<i32>| {
            Activation::from(Tensor::<2, Int>::from_data(TensorData::new(values, shape), &Device::flex()))
        };
        let whole =
            |name: &str, activation, axes, filler| Named { name: name.into(), activation, axes, whole: true, filler };
        let ids = integers(tokens.ids().iter().map(|id| *id as i32).collect());
        let mut tensors = vec![
            whole("tokens", ids, &[Axis::Batch, Axis::Pos], i64::from(pad).to_le_bytes().to_vec()),
            whole("attention_mask", integers(vec![1; shape[0] * shape[1]]), &[Axis::Batch, Axis::Pos], Vec::new()),
        ];
        if let Some(logits) = logits {
            let axes: &[Axis] = match self.logits {
                Logits::All => &[Axis::Batch, Axis::Pos, Axis::Vocab],
                _ => &[Axis::Batch, Axis::One, Axis::Vocab],
            };
            tensors.push(whole("logits", Activation::from(logits).cast(self.dtype), axes, Vec::new()));
        }
        for (name, activation) in cache.iter() {
            let point = cache.catalog().info(cache.catalog().find(name)?);
            let filler = if point.filler == Filler::MinusInfinity { self.dtype.minus_infinity() } else { Vec::new() };
            let axes = point.axes;
            tensors.push(Named { name: name.into(), activation: activation.clone(), axes, whole: every, filler });
        }
        Ok(tensors)
    }

    /// Everything that makes two runs the same but for the model and the prompts, for the manifest.
    fn settings(&self) -> Vec<(String, String)> {
        let own = [
            ("hooks", format!("{:?}", self.selection)),
            ("positions", self.positions.to_string()),
            ("dtype", self.dtype.to_string()),
            ("logits", format!("{:?}", self.logits).to_lowercase()),
            ("padding_side", format!("{:?}", self.padding_side).to_lowercase()),
            ("batch_size", self.batch_size.to_string()),
            ("prefix_tokens", format!("{:?}", self.prefix)),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
        self.settings.iter().cloned().chain(own).collect()
    }
}
