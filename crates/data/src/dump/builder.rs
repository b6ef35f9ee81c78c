//! Builder of a dump: points, positions, element type and batches.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hooklens_hooks::{DType, Positions, Selection, SelectionText};
use serde_json::{Map, Value, json};

use super::placing::is_packable;
use super::{DumpModel, DumpReport, Shard, StreamWatcher, hash_of_rows};
use crate::corpus::RowSource;
use hooklens_model::driver::Logits;
use hooklens_model::error::Result;
use hooklens_model::tokens::PaddingSide;

/// Configuration of a dump: what to write, and how.
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
    pub(super) selection: Selection,
    pub(super) positions: Positions,
    pub(super) dtype: DType,
    pub(super) logits: Logits,
    pub(super) padding_side: PaddingSide,
    pub(super) batch_size: usize,
    pub(super) prefix: Vec<u32>,
    pub(super) resume: bool,
    pub(super) verify: bool,
    pub(super) share_prefix: bool,
    pub(super) allow_non_finite: bool,
    pub(super) shard: Option<Shard>,
    pub(super) stop: Option<Arc<AtomicBool>>,
    pub(super) tables: bool,
    pub(super) settings: Vec<(String, Value)>,
    /// Where the prompts come from.
    pub(super) prompts: Map<String, Value>,
    /// Encoder input of each prompt; empty unless decoder activations are dumped.
    pub(super) read: Vec<Vec<u32>>,
    /// Size in bytes at which a packed file is complete.
    pub(super) file_size: u64,
    /// Whether invalid prompts are skipped.
    pub(super) skip_errors: bool,
}

/// Default size of packed files.
const FILE_SIZE: u64 = 256 << 20;

impl Dump {
    /// Creates a dump of these points in `f32`, with eight prompts per batch and padding on the right.
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
            verify: true,
            share_prefix: true,
            allow_non_finite: false,
            shard: None,
            stop: None,
            tables: false,
            settings: Vec::new(),
            prompts: Map::new(),
            read: Vec::new(),
            file_size: FILE_SIZE,
            skip_errors: false,
        }
    }

    /// Keeps only these positions of each prompt, counted from the prompt's own first or last token. If a range exceeds
    /// a prompt, only the positions that exist are kept.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// Dump::new("z0").positions(-1).run(&model, &[vec![0, 51, 59], vec![0, 9]], &out)?; // the last token of each row
    /// let files = hooklens::WeightFiles::open(&[out])?;
    /// assert_eq!(files.info("blocks.0.attn.hook_z").map(|info| info.shape.clone()), Some(vec![2, 1, 4, 16]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.positions = positions.into();
        self
    }

    /// Sets the element type of floats in the output.
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
    /// assert_eq!(wide - narrow, 3 * 64 * 2); // two bytes per element
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Also writes logits.
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

    /// Sets the side on which a batch's shorter prompts are padded.
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

    /// Sets the number of prompts computed together, at least one. In a folder, each batch is a file.
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
    /// let files = names.filter(|name| name.to_string_lossy().ends_with(".safetensors"));
    /// assert_eq!(files.count(), 2); // two prompts, then one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows.max(1);
        self
    }

    /// Sets tokens that precede every prompt. They are computed once and not dumped. Prompts given as text then get no
    /// beginning-of-sequence token.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let instruction = vec![0, 51, 59, 21];
    /// let done = Dump::new("z0").prefix(instruction).run(&model, &[vec![51], vec![9, 50]], &out)?;
    /// assert_eq!(done.tokens, 3); // tokens of the prompts
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, tokens: Vec<u32>) -> Self {
        self.prefix = tokens;
        self
    }

    /// Sets whether a common prefix of a batch's prompts is computed only once where worthwhile (default: yes). The
    /// output is the same up to rounding errors of about 1e-6 of a tensor's largest value.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// // Eight prompts that start with the same twelve tokens.
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

    /// Sets whether non-finite values are written and listed in the report instead of causing an error. Non-finite
    /// values are NaN and infinities; in `f16`, values above 65,504 become infinite. (Minus infinity is always allowed
    /// in masked attention scores.)
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::resid_post(0).scale(1e6)]);
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let dump = Dump::new("resid_post0").dtype(DType::F16);
    /// let message = dump.run(&hooked, "red fox", &out).unwrap_err().to_string();
    /// assert!(message.contains("blocks.0.hook_resid_post") && message.contains("f16"), "{message}");
    /// assert_eq!(dump.allow_non_finite(true).run(&hooked, "red fox", &out)?.non_finite, ["blocks.0.hook_resid_post"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn allow_non_finite(mut self, allow: bool) -> Self {
        self.allow_non_finite = allow;
        self
    }

    /// Resumes a folder that an earlier run left unfinished. The model, prompts, settings and edits must be the same as
    /// in that run; hooks with closures are compared by name (see [`Hook::named`](hooklens_model::hook::Hook::named)).
    /// [`merge`](super::merge()) compares shards in the same way.
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
    /// assert!(dump.run(&model, &rows, &out).is_err()); // the folder already contains a dump
    /// assert_eq!(dump.resume(true).run(&model, &rows, &out)?.resumed, 2); // batches already finished
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Sets whether a resumed run verifies the checksums of finished files and recomputes damaged ones (default: yes).
    /// File lengths are checked in any case.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let rows = vec![vec![0, 51], vec![0, 9]];
    /// let dump = Dump::new("z0").batch_size(1).resume(true);
    /// let first = &dump.run(&model, &rows, &out)?.files[0];
    /// let mut bytes = std::fs::read(first)?;
    /// *bytes.last_mut().unwrap() ^= 1;
    /// std::fs::write(first, bytes)?;
    /// assert_eq!(dump.clone().verify(false).run(&model, &rows, &out)?.resumed, 2); // not detected
    /// assert_eq!(dump.run(&model, &rows, &out)?.resumed, 0); // all batches from the damaged one on were recomputed
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Dumps one shard of the prompts to its own folder. Every job is given the same prompts, and
    /// [`merge`](super::merge()) combines the folders into one dump.
    ///
    /// ```
    /// use hooklens::dump::{Dump, Shard, merge};
    /// use hooklens::prelude::*;
    ///
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let folder = tempfile::tempdir()?;
    /// let rows = vec![vec![0, 5, 6], vec![0, 8, 9], vec![0, 7]];
    /// let shards = [1, 2].map(|index| folder.path().join(format!("{index}-of-2")));
    /// for (index, out) in shards.iter().enumerate() {
    ///     let dump = Dump::new("*hook_z").batch_size(1).shard(Shard::new(index + 1, 2)?);
    ///     dump.run(&model, &rows, out)?;
    /// }
    /// assert_eq!(merge(folder.path(), &shards)?.rows, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shard(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Stops after the current batch once this flag is set, for example by a signal handler. Finished batches are
    /// written, and a folder can be resumed. [`DumpReport::left`](super::DumpReport::left) is the number of prompts not
    /// computed.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use hooklens::dump::{Dump, Seen};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let rows = vec![vec![0, 51], vec![0, 9], vec![0, 7]];
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let dump = Dump::new("z0").batch_size(1).stop_when(stop.clone());
    /// let seen = &mut |_: Seen<'_>| stop.store(true, Ordering::Relaxed); // after the first batch
    /// assert_eq!(dump.run_watched(&model, &rows, &out, seen)?.left, 2);
    /// assert_eq!(Dump::new("z0").batch_size(1).resume(true).run(&model, &rows, &out)?.left, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Writes a folder of Parquet files with one row per token: `prompt`, `position` and `token`, and each point as a
    /// fixed-length list. Latents are written as lists `.indices` and `.values` of the nonzero entries. There is no
    /// padding.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// let done = Dump::new("resid_post1").tables().run(&model, &[vec![0, 51, 59]], folder.path().join("out"))?;
    /// assert!(done.files[0].ends_with("shard-00000.parquet"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Running the dump fails for points without one row per token (attention patterns), and for `bf16`, which Parquet
    /// lacks.
    #[cfg(feature = "arrow")]
    #[must_use]
    pub fn tables(mut self) -> Self {
        self.tables = true;
        self
    }

    /// Sets the encoder input of an encoder-decoder, one row per prompt. The prompts are then the decoder's tokens,
    /// including the start token, and points of the decoder are dumped, except for cross-attention scores and patterns.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let (read, written) = (vec![vec![5, 6, 7, 1], vec![8, 1]], vec![vec![0, 4], vec![0, 3, 9]]);
    /// Dump::new("decoder.*.hook_resid_post").encoder_rows(read).run(&model, &written, &out)?;
    /// let files = hooklens::WeightFiles::open(&[out])?;
    /// assert_eq!(files.info("decoder.0.hook_resid_post").map(|info| info.shape[..2].to_vec()), Some(vec![2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn encoder_rows(mut self, rows: impl IntoIterator<Item = Vec<u32>>) -> Self {
        self.read = rows.into_iter().collect();
        self
    }

    /// Settings for the manifest: everything that determines the output besides the model and the prompts.
    pub(super) fn settings(&self) -> Vec<(String, Value)> {
        // These strings are stored and compared, so they are spelled out rather than derived from names in the code.
        let padding_side = match self.padding_side {
            PaddingSide::Left => "left",
            PaddingSide::Right => "right",
        };
        let own = [
            ("hooks", json!(self.selection.texts())),
            ("positions", json!(self.positions.to_string())),
            ("dtype", json!(self.dtype.to_string())),
            ("logits", json!(self.logits.to_string())),
            ("padding_side", json!(padding_side)),
            ("batch_size", json!(self.batch_size)),
            ("prefix_tokens", json!(self.prefix)),
        ];
        let own = own.into_iter().chain(self.tables.then(|| ("format", json!("parquet"))));
        let read = (!self.read.is_empty()).then(|| ("encoder_tokens", json!(hash_of_rows(&self.read))));
        let own = own.chain(read);
        let own = own.map(|(name, value)| (name.to_string(), value));
        self.settings.iter().cloned().chain(own).collect()
    }
}

/// What the command line needs from a dump besides running it.
pub trait DumpJob {
    /// Number of prompts, out of `rows`, that this dump computes.
    fn own_rows(&self, rows: usize) -> usize;

    /// Records where the prompts come from, such as their files. Runs that resume the dump may state a different
    /// origin, because the token ids themselves are compared.
    fn prompts_from(self, prompts: Map<String, Value>) -> Self;

    /// Sets the size in bytes at which a packed file is complete. Default 256 MiB.
    fn file_size(self, bytes: u64) -> Self;

    /// Sets whether invalid prompts of a corpus are skipped, instead of ending the run.
    fn skip_errors(self, skip: bool) -> Self;

    /// Whether the dump of a corpus can be packed: whether no point depends on how prompts are batched.
    fn can_be_packed<M: DumpModel>(&self, model: &M) -> Result<bool>;

    /// Dumps the prompts of a corpus to a folder of packed files, reading them when they are needed.
    fn run_corpus<M: DumpModel>(
        &self,
        model: &M,
        rows: &(dyn RowSource + Sync),
        folder: &Path,
        watcher: &mut StreamWatcher<'_>,
    ) -> Result<DumpReport>;
}

impl DumpJob for Dump {
    fn own_rows(&self, rows: usize) -> usize {
        self.own(rows).len()
    }

    fn prompts_from(mut self, prompts: Map<String, Value>) -> Self {
        self.prompts = prompts;
        self
    }

    fn file_size(mut self, bytes: u64) -> Self {
        self.file_size = bytes.max(1);
        self
    }

    fn skip_errors(mut self, skip: bool) -> Self {
        self.skip_errors = skip;
        self
    }

    fn can_be_packed<M: DumpModel>(&self, model: &M) -> Result<bool> {
        let points = self.selection.resolve(model.catalog())?;
        Ok(points.iter().all(|id| is_packable(model.catalog().info(*id).axes)))
    }

    fn run_corpus<M: DumpModel>(
        &self,
        model: &M,
        rows: &(dyn RowSource + Sync),
        folder: &Path,
        watcher: &mut StreamWatcher<'_>,
    ) -> Result<DumpReport> {
        self.stream_corpus(model, rows, folder, watcher)
    }
}
