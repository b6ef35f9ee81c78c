//! Runs a dump batch by batch, to a file or a folder.

use std::ops::Range;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use hooklens_hooks::{HookError, SelectionText};

use super::batch::{Batch, Noted};
use super::compute::worth_sharing;
use super::file::FileSink;
use super::folder::FolderSink;
use super::manifest::Manifest;
use super::placing::{Placing, PromptRow, Widths};
use super::writer::{Sink, Writer};
use super::{Dump, DumpModel, DumpReport, DumpedModel, Seen, SplitByShard, Watcher};
use crate::error::DumpError;
use hooklens_io::object_stores::is_url;
use hooklens_model::device::synchronize;
use hooklens_model::driver::Input;
use hooklens_model::error::{InputError, Result};
use hooklens_model::tokens::token_text;

impl Dump {
    /// Records a setting in the folder's manifest, such as the model's name. A run that resumes the folder must have
    /// the same setting.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let out = folder.path().join("out");
    /// let dump = |text| Dump::new("z0").setting("prompts", text).resume(true);
    /// dump("animals").run(&model, &[vec![0, 9]], &out)?;
    /// let message = dump("colors").run(&model, &[vec![0, 9]], &out).unwrap_err().to_string();
    /// assert!(message.contains("different settings (prompts: animals before, colors now)"), "{message}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_string(), value.into()));
        self
    }

    /// Like [`Dump::run`], but calls `watcher` with each batch before it is written.
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
    /// Same as [`Dump::run`].
    pub fn run_watched<M: DumpModel>(
        &self,
        model: &M,
        rows: &[Vec<u32>],
        out: impl AsRef<Path>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let out = out.as_ref();
        self.check_run(model, rows.len())?;
        let to_file = out.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
        self.run_checked(model, rows, out, to_file, watcher)
    }

    /// Checks that hooks and prefix allow prompts to be computed in batches.
    pub(super) fn check_run<M: DumpModel>(&self, model: &M, rows: usize) -> Result<()> {
        if model.tells_rows_apart() && rows > 1 {
            let reason = "a dump splits its prompts into batches, so row numbers are not prompt numbers";
            let option = "hooks that depend on row numbers";
            return Err(InputError::Conflict { option, with: "a dump of several prompts", reason }.into());
        }
        if model.counts_from_the_end() && !self.prefix.is_empty() {
            let reason = "the prefix runs separately, so positions would also be counted from its end";
            let option = "hooks at positions counted from the end";
            return Err(InputError::Conflict { option, with: "a dump with a prefix", reason }.into());
        }
        Ok(())
    }

    fn run_checked<M: DumpModel>(
        &self,
        model: &M,
        rows: &[Vec<u32>],
        out: &Path,
        to_file: bool,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        let placed = self.check(model, rows, to_file)?;
        if to_file {
            if is_url(out) {
                let reason = "a single-file dump cannot be written to an object store; choose a folder".to_string();
                return Err(DumpError::Refused { path: out.to_path_buf(), reason }.into());
            }
            if self.shard.is_some() {
                let reason = "a shard must be written to a folder, which `merge` combines with the others".to_string();
                return Err(DumpError::Refused { path: out.to_path_buf(), reason }.into());
            }
            if self.resume {
                let reason = "only a folder can be resumed; a single file is written only when complete".to_string();
                return Err(DumpError::Refused { path: out.to_path_buf(), reason }.into());
            }
            let dumped = DumpedModel::of(self, model, rows, self.edits_of(model)?)?;
            let dumped = if dumped.identity.is_none() { dumped.fingerprinted(model)? } else { dumped };
            let manifest = self.manifest(model, dumped, rows)?;
            let sink = FileSink::new(out, manifest, Widths::of(placed.iter()))?;
            return self.stream(model, rows, &placed, None, Box::new(sink), watcher);
        }
        let dumped = DumpedModel::of(self, model, rows, self.edits_of(model)?)?.fingerprinted(model)?;
        let (manifest, own) = (self.manifest(model, dumped, rows)?, self.own(rows.len()));
        let sink = FolderSink::open(out, manifest, self, own.start, Widths::of(placed[own].iter()))?;
        let finished = sink.finished();
        self.stream(model, rows, &placed, Some(finished), Box::new(sink), watcher)
    }
}

impl Dump {
    /// Runs the model on each prompt and writes the requested activations. If `out` ends in `.safetensors`, the output
    /// is a single file, else a folder with a manifest and one file per batch.
    ///
    /// A single file contains one tensor per point, with all rows padded to the longest; each file in a folder contains
    /// these tensors for one batch. Files also contain `tokens` and `attention_mask`, `[row, pos]`, and `logits` if
    /// requested. Padded elements are zero (minus infinity in scores). A single file appears only when it is complete,
    /// and replaces any file of the same name. A folder's files appear one by one, and a folder that contains a dump
    /// can only be resumed.
    ///
    /// ```
    /// use hooklens::dump::Dump;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let (file, many) = (folder.path().join("all.safetensors"), folder.path().join("many"));
    /// let rows = vec![vec![0, 51], vec![0, 9]];
    /// let dump = Dump::new("z0").batch_size(1);
    /// assert_eq!(dump.run(&model, &rows, &file)?.files.len(), 1); // the extension selects a single file
    /// assert!(dump.run(&model, &rows, &many)?.files.len() > 1 && many.is_dir());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails for invalid rows ([`DumpError::Row`] names the prompt), unknown points, an output that cannot be written,
    /// or a folder with other contents. Finished files are kept.
    pub fn run<M: DumpModel>(&self, model: &M, prompts: impl Into<Input>, out: impl AsRef<Path>) -> Result<DumpReport> {
        self.run_watched(model, &model.prompts(prompts.into(), self.prefix.len())?, out, &mut |_| {})
    }

    /// The manifest of a dump of these rows, before anything is written.
    fn manifest<M: DumpModel>(&self, model: &M, dumped: DumpedModel, rows: &[Vec<u32>]) -> Result<Manifest> {
        let selection = self.selection.spelled_out(model.catalog())?;
        let tokenizer = model.tokenizer().ok();
        let text = |id| tokenizer.map(|tokenizer| token_text(Some(tokenizer), id));
        Ok(Manifest::new(&Self { selection, ..self.clone() }, dumped, rows, text))
    }

    /// Range of prompts that this dump computes: all prompts, or the prompts of its shard, regardless of the batch
    /// size.
    pub(super) fn own(&self, rows: usize) -> Range<usize> {
        self.shard.map_or(0..rows, |shard| shard.share_of(rows))
    }

    /// Editing hooks, as described in the manifest.
    ///
    /// # Errors
    /// [`HookError::Unnamed`] if the dump is a shard or resumes another run, and an editing hook has no name.
    pub(super) fn edits_of<M: DumpModel>(&self, model: &M) -> Result<Vec<String>> {
        let alone = !self.resume && self.shard.is_none();
        let described = |identity: Result<String, HookError>| match identity {
            Err(HookError::Unnamed { hook }) if alone => Ok(format!("{hook} without a name")),
            identity => Ok(identity?),
        };
        model.hook_identities()?.into_iter().map(described).collect()
    }

    fn stream<M: DumpModel>(
        &self,
        model: &M,
        rows: &[Vec<u32>],
        placed: &[PromptRow],
        // Number of finished batches in a folder.
        of_folder: Option<usize>,
        sink: Box<dyn Sink>,
        watcher: &mut Watcher<'_>,
    ) -> Result<DumpReport> {
        // A single file appears only when complete, so such a run cannot be stopped early.
        let (finished, to_folder) = (of_folder.unwrap_or(0), of_folder.is_some());
        let mut prefix = self.prefilled(model)?;
        let mut shared_prefix = self.shared_prefix(model)?;
        let non_finite = self.allow_non_finite.then(Noted::default);
        let writer = Writer::start(sink)?;
        let (mut tokens_run, mut left) = (0, 0);
        let own = self.own(rows.len());
        let skipped = (finished * self.batch_size).min(own.len());
        if skipped > 0 {
            watcher(Seen::Resumed(skipped));
        }
        for first_row in own.clone().step_by(self.batch_size).skip(finished) {
            if to_folder && self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                left = own.end - first_row;
                break;
            }
            let own_rows = first_row..own.end.min(first_row + self.batch_size);
            let (batch, placed) = (&rows[own_rows.clone()], &placed[own_rows.clone()]);
            let mut placing = Placing::new(placed.to_vec(), self.padding_side, self.prefix.len(), &self.positions);
            let computed = match (&mut shared_prefix, worth_sharing(rows, own_rows)) {
                (Some(shared_prefix), Some(shared)) => {
                    placing.padded_right();
                    self.compute_shared(model, batch, shared_prefix, shared, watcher)
                }
                _ => self.compute(model, batch, first_row, &placing, prefix.as_mut(), watcher),
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
            // A shard's first batch may start within a batch of the whole dump.
            let number = first_row / self.batch_size;
            if !writer.send(Batch { number, first_row, placing, tensors, non_finite: non_finite.clone(), stream: None })
            {
                break;
            }
        }
        // A device may report errors late.
        let late = synchronize(&model.devices());
        let mut report = writer.finish()?;
        late?;
        report.rows = own.len() - left;
        report.left = left;
        report.tokens = tokens_run;
        report.resumed = finished;
        if let Some(noted) = non_finite {
            report.non_finite = noted.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        }
        report.shared = shared_prefix.map_or(0, |shared_prefix| shared_prefix.saved());
        Ok(report)
    }
}
