//! The builder of a dump: points, positions, element type, batches.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hooklens_hooks::{DType, Positions, Selection};

use super::{Shard, hash_of_rows};
use hooklens_model::driver::Logits;
use hooklens_model::tokens::PaddingSide;

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
    pub(super) settings: Vec<(String, String)>,
    /// What the encoder reads before the prompts; of none, or of each.
    pub(super) read: Vec<Vec<u32>>,
}

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
            verify: true,
            share_prefix: true,
            allow_non_finite: false,
            shard: None,
            stop: None,
            tables: false,
            settings: Vec::new(),
            read: Vec::new(),
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

    /// Prompts computed together; each batch of a folder is a file. At least one.
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

    /// Tokens that come before every prompt, computed once and not dumped. Prompts that are texts then get no
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
    /// assert_eq!(done.tokens, 3); // those of the prompts
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, tokens: Vec<u32>) -> Self {
        self.prefix = tokens;
        self
    }

    /// Whether what the prompts of a batch begin with is computed once (it is unless told
    /// otherwise, where that is worth it). What is written is the same but for rounding: some 1e-6 of a tensor's largest value.
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

    /// Whether values that are no finite numbers are written, and told in the report, instead of being an error: NaN,
    /// and infinities such as f16 makes of numbers over 65,504. (Where a query may not look, minus infinity is no
    /// fault.)
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::resid_post(0).scale(1e6)]);
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out.safetensors");
    /// let dump = Dump::new("resid_post0").dtype(DType::F16);
    /// let told = dump.run(&hooked, "red fox", &out).unwrap_err().to_string();
    /// assert!(told.contains("blocks.0.hook_resid_post") && told.contains("f16"), "{told}");
    /// assert_eq!(dump.allow_non_finite(true).run(&hooked, "red fox", &out)?.non_finite, ["blocks.0.hook_resid_post"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn allow_non_finite(mut self, allow: bool) -> Self {
        self.allow_non_finite = allow;
        self
    }

    /// Continues a folder that an earlier run left unfinished. Model, prompts, settings and edits have to be that run's.
    /// What a hook's closure does is known by its name only: see [`Hook::named`](hooklens_model::hook::Hook::named). Shards are compared in
    /// the same way.
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

    /// Whether a run that continues a folder compares the bytes of its finished files with their checksums, and computes
    /// damaged ones anew: so it is unless it is told not to, for haste. Their lengths are compared in any case.
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
    /// assert_eq!(dump.clone().verify(false).run(&model, &rows, &out)?.resumed, 2); // not seen
    /// assert_eq!(dump.run(&model, &rows, &out)?.resumed, 0); // from the damaged file on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Dumps one shard of the prompts, to a folder of its own: the same prompts are given to every job,
    /// and [`merge`](super::merge()) makes one dump of the folders.
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

    /// Stops behind the batch that is computed when this is set, as by a signal: what is done is written, and a folder can
    /// be continued. [`DumpReport::left`](super::DumpReport::left) says what is not.
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

    /// Writes a folder of Parquet files: a row a token with its `prompt`, `position` and `token`, each point a list of fixed
    /// length, latents as the lists `.indices` and `.values` of those that are not zero. There is no padding.
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
    /// Points that have no row a token (attention patterns) and `bf16`, which Parquet has not, are errors.
    #[cfg(feature = "arrow")]
    #[must_use]
    pub fn tables(mut self) -> Self {
        self.tables = true;
        self
    }

    /// What the encoder of an encoder-decoder reads, a row for each prompt. The prompts are then what the decoder has written,
    /// its start token first, and points of the decoder are dumped, but for the scores and patterns of its cross attention.
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

    /// The settings for the manifest: everything that determines the output besides the model and the prompts.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        // Stored and compared: written out, so that they do not follow names in the code.
        let padding_side = match self.padding_side {
            PaddingSide::Left => "left",
            PaddingSide::Right => "right",
        };
        let own = [
            ("hooks", format!("{:?}", self.selection)),
            ("positions", self.positions.to_string()),
            ("dtype", self.dtype.to_string()),
            ("logits", self.logits.to_string()),
            ("padding_side", padding_side.into()),
            ("batch_size", self.batch_size.to_string()),
            ("prefix_tokens", format!("{:?}", self.prefix)),
        ];
        let own = own.into_iter().chain(self.tables.then(|| ("format", "parquet".to_string())));
        let read = (!self.read.is_empty()).then(|| ("encoder_tokens", hash_of_rows(&self.read)));
        let own = own.chain(read);
        let own = own.map(|(name, value)| (name.to_string(), value));
        self.settings.iter().cloned().chain(own).collect()
    }
}
