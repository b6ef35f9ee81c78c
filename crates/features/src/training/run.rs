//! Training runs of several dictionaries on one stream of activations.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use hooklens_hooks::{FolderLock, check_own_file};
use serde_json::{Value, json};

use super::checkpoint;
use super::held_out::{self, HeldOut};
use super::identity::TrainingIdentity;
use super::settings::Training;
use super::source::{FromDumps, FromModel, Rows, Serving, Source};
use super::trainer::{Step, Trainer};
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::opened::Opened;
use crate::transcoders::Transcoders;
use hooklens_data::corpus::RowSource;
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::device::check_room;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{Error, Result, load_errors};
use hooklens_model::model::HookedTransformer;

/// Name of the checkpoint file.
const FILE: &str = "checkpoint.safetensors";

/// Trains several dictionaries at once, on the activations of one pass of a model over prompts, or of one pass over a
/// dump.
///
/// ```
/// use hooklens::features::{Opened, Training, TrainingRun};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let prompts: Vec<Vec<u32>> = ["When Mary and John went to the store, John gave a drink to"; 64]
///     .iter()
///     .map(|text| Ok(model.to_tokens(*text)?.row(0).to_vec()))
///     .collect::<Result<_, hooklens::Error>>()?;
/// let sae = |layer| Training::autoencoder(hook::resid_post(layer), 64).k(4.0).tokens(4_000).batch_size(400);
/// let trained = TrainingRun::new([sae(1), sae(2)]).on_model(&model, &prompts, |_, _| {})?;
/// assert!((trained[0].held_out[0].l0 - 4.0).abs() < 0.4); // measured on the dictionary as it is saved
/// let Opened::Dictionary(sae) = &trained[1].dictionary else { return Ok(()) };
/// assert_eq!(sae.metadata().reads.as_deref(), Some("blocks.2.hook_resid_post"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TrainingRun {
    trainings: Vec<Training>,
    left_out: Vec<u32>,
    checkpoints: Option<(PathBuf, usize)>,
    resume: bool,
    log_every: usize,
    stop: Option<Arc<AtomicBool>>,
    /// Whether the caller has locked the checkpoint folder.
    locked: bool,
}

/// A trained dictionary and its training log.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Trained {
    /// The dictionary, or the transcoders.
    pub dictionary: Opened,
    /// Metrics of the logged steps, each computed on the step's batch. For BatchTopK, active latents are chosen over
    /// that batch.
    pub log: Vec<Step>,
    /// Metrics of the final dictionary on tokens that follow the training data: one entry, or one per layer of a
    /// cross-layer transcoder. Empty if training was stopped.
    pub held_out: Vec<HeldOut>,
    /// Number of tokens left if training was stopped: see [`TrainingRun::stop_when`].
    pub left: usize,
    pub(super) identity: TrainingIdentity,
}

impl TrainingRun {
    /// Creates a run that trains one dictionary per element of `trainings`, all on the same batches.
    pub fn new(trainings: impl IntoIterator<Item = Training>) -> Self {
        let trainings = trainings.into_iter().collect();
        Self {
            trainings,
            left_out: Vec::new(),
            checkpoints: None,
            resume: false,
            log_every: 10,
            stop: None,
            locked: false,
        }
    }

    /// Excludes activations at these tokens, such as BOS.
    pub fn exclude_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = tokens.into_iter().collect();
        self
    }

    /// Writes a checkpoint to a folder every `every` tokens. The checkpoint is kept when training ends, so that the
    /// result can be saved first; remove it with [`TrainingRun::remove_checkpoint`]. Only one process at a time can use
    /// the folder, and damaged checkpoints are rejected.
    pub fn checkpoints(mut self, folder: impl Into<PathBuf>, every: usize) -> Self {
        self.checkpoints = Some((folder.into(), every.max(1)));
        self
    }

    /// Removes the checkpoint of a finished run, if there is one.
    ///
    /// # Errors
    /// Fails if the file cannot be removed.
    pub fn remove_checkpoint(&self) -> Result<()> {
        match self.checkpoint().filter(|path| path.is_file()) {
            Some(path) => Ok(std::fs::remove_file(&path).map_err(load_errors::cant_write(&path))?),
            None => Ok(()),
        }
    }

    /// Path of the checkpoint.
    fn checkpoint(&self) -> Option<PathBuf> {
        self.checkpoints.as_ref().map(|(folder, _)| Self::checkpoint_in(folder))
    }

    /// Sets whether to resume from the checkpoint in the folder, if there is one, as if training had not been
    /// interrupted.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Stops after the current step when this flag is set, and saves a checkpoint if [`TrainingRun::checkpoints`] is
    /// set.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// # use hooklens::features::{Training, TrainingRun};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let prompts = vec![(1..11).collect::<Vec<u32>>(); 8];
    /// let sae = Training::autoencoder("resid_post1", 64).tokens(400).batch_size(40);
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let run = TrainingRun::new([sae]).checkpoints(folder.path(), 1_000_000).resume(true);
    /// let stopped = run.clone().stop_when(stop.clone()).on_model(&model, &prompts, |_, step| {
    ///     stop.store(step.step == 3, Ordering::Relaxed); // stop after the third step
    /// })?;
    /// assert_eq!(stopped[0].left, 400 - 3 * 40);
    /// assert_eq!(run.on_model(&model, &prompts, |_, _| {})?[0].left, 0); // resumes from the checkpoint
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Trains on activations of a model, run on prompts of token ids. `progress` is called after each step of each
    /// dictionary, with its index in the run.
    ///
    /// # Errors
    /// Fails for invalid settings, if the model lacks a point or cannot run the prompts, for activations that are not
    /// finite, and if a checkpoint cannot be written or belongs to a different run.
    pub fn on_model(
        &self,
        model: &HookedTransformer,
        prompts: &[Vec<u32>],
        progress: impl FnMut(usize, &Step),
    ) -> Result<Vec<Trained>> {
        self.on_rows(model, &Cow::Borrowed(prompts), progress)
    }

    /// Trains on dumps: folders or files written by [`Dump`](hooklens_data::dump::Dump), read on demand like an
    /// [`ActivationStore`](hooklens_data::dump::ActivationStore).
    ///
    /// # Errors
    /// Same as [`TrainingRun::on_model`]; also fails if a dump lacks a point, or does not contain one vector per token
    /// for that point.
    pub fn on_dumps<P: AsRef<Path>>(
        &self,
        dumps: impl IntoIterator<Item = P>,
        progress: impl FnMut(usize, &Step),
    ) -> Result<Vec<Trained>> {
        self.run(&mut FromDumps::new(dumps, &self.left_out), progress)
    }

    /// Returns the run with the model's own names for the points.
    fn resolved(&self, model: &HookedTransformer) -> Result<Self> {
        let trainings = self.trainings.iter().map(|training| training.resolved(model.catalog()));
        Ok(Self { trainings: trainings.collect::<Result<_>>()?, ..self.clone() })
    }

    fn identities(&self, source: &mut dyn Source) -> Result<Vec<TrainingIdentity>> {
        let data = source.described()?;
        Ok(self.trainings.iter().map(|training| TrainingIdentity::new(training, &data)).collect())
    }

    fn run(&self, source: &mut dyn Source, mut progress: impl FnMut(usize, &Step)) -> Result<Vec<Trained>> {
        let Some(first) = self.trainings.first() else { return Ok(Vec::new()) };
        for training in &self.trainings {
            training.check()?;
            if (training.batch, training.seed, training.buffer) != (first.batch, first.seed, first.buffer) {
                let reason =
                    "all dictionaries trained in one run must have the same batch size, seed and buffer".to_string();
                return Err(FeatureError::Kind { dictionary: training.name.clone(), reason }.into());
            }
        }
        let mut points: Vec<String> = Vec::new();
        for training in &self.trainings {
            let (inputs, outputs) = training.all_points();
            points.extend(inputs.into_iter().chain(outputs));
        }
        points.sort();
        points.dedup();
        let (origin, widths) = (source.origin()?, source.widths(&points)?);
        // A failed allocation would abort the process.
        let total = self.trainings.iter().map(|training| training.total).max().unwrap_or(0);
        let rows = first.batch.saturating_mul(first.buffer).min(total);
        let width: usize = widths.values().sum();
        check_room(&Device::flex(), rows.saturating_mul(width).saturating_mul(size_of::<f32>()))?;
        let mut trainers: Vec<Trainer> = Vec::new();
        for training in &self.trainings {
            let (inputs, outputs) = training.all_points();
            let (d_in, d_out) = (widths[&inputs[0]], widths[&outputs[0]]);
            let mut trainer = Trainer::new(training, d_in, d_out);
            trainer.origin = origin.clone();
            trainers.push(trainer);
        }
        let mut logs = vec![Vec::new(); trainers.len()];
        let saved = self.checkpoint();
        let folder = self.checkpoints.as_ref().map(|(folder, _)| folder).filter(|_| !self.locked);
        let lock = |folder: &PathBuf| {
            std::fs::create_dir_all(folder).map_err(load_errors::cant_write(folder))?;
            FolderLock::take(folder).map_err(|error| Error::from(FeatureError::Locked(error)))
        };
        let _lock = folder.map(lock).transpose()?;
        if let Some(path) = &saved {
            check_own_file(path).map_err(load_errors::cant_write(path))?;
        }
        // Identifying a dump requires reading its tokens, so it is done only for checkpoints.
        let data = if saved.is_some() { source.described()? } else { Value::Null };
        let serving = Serving { seed: first.seed, batch: first.batch, buffer: first.batch * first.buffer };
        let mut seen = None;
        let done = match &saved {
            Some(path) if self.resume && path.exists() => {
                (logs, seen) = checkpoint::restore(path, &mut trainers, &data)?;
                trainers.iter().map(|trainer| trainer.tokens).max().unwrap_or(0)
            }
            _ => 0,
        };
        source.begin(&points, serving, done)?;
        if let (Some(path), true) = (&saved, seen.is_some() && seen != source.seen()) {
            let reason = "the prompts that were read have changed since it was written; remove it to restart training";
            return Err(FeatureError::Setting { path: path.clone(), reason: reason.into() }.into());
        }
        if done == 0 {
            let held = source.first()?;
            for trainer in &mut trainers {
                let (inputs, outputs) = trainer.settings.all_points();
                let of = |points: &[String]| points.iter().map(|point| &held[point][..]).collect::<Vec<_>>();
                trainer.prepare(&of(&inputs), &of(&outputs));
            }
        }
        let mut next = self.checkpoints.as_ref().map(|(_, every)| (done / every + 1) * every);
        while trainers.iter().any(|trainer| trainer.tokens < trainer.settings.total) {
            let batch: Rows = source.next()?;
            for (place, trainer) in trainers.iter_mut().enumerate() {
                let total = trainer.settings.total;
                if trainer.tokens >= total {
                    continue;
                }
                let (inputs, outputs) = trainer.settings.all_points();
                let of = |points: &[String]| points.iter().map(|point| &batch[point][..]).collect::<Vec<_>>();
                let step = trainer.step(&of(&inputs), &of(&outputs));
                if !step.loss.is_finite() {
                    let what = format!("the loss of {} at step {}", trainer.settings.name, step.step);
                    return Err(Error::NotANumber { what });
                }
                if step.step % self.log_every == 0 || step.tokens >= total {
                    logs[place].push(step);
                }
                progress(place, &step);
            }
            let tokens = trainers.iter().map(|trainer| trainer.tokens).max().unwrap_or(0);
            let stop = self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
            if let (Some(path), Some(at)) = (&saved, next)
                && (tokens >= at || stop)
            {
                checkpoint::save(path, &mut trainers, &logs, &data, source.seen())?;
                next = self.checkpoints.as_ref().map(|(_, every)| (tokens / every + 1) * every);
            }
            if stop {
                break;
            }
        }
        let made = held_out::finished(&mut trainers, &self.left_out, source)?;
        let trained = trainers.iter().zip(logs).zip(made).map(|((trainer, log), (dictionary, held_out))| Trained {
            dictionary,
            log,
            held_out,
            left: trainer.settings.total.saturating_sub(trainer.tokens),
            identity: TrainingIdentity::new(&trainer.settings, &data),
        });
        Ok(trained.collect())
    }
}

impl Trainer {
    /// Number of tokens in activations of the trainer's points.
    pub(super) fn rows(&self, rows: &Rows) -> usize {
        let (read, _) = self.settings.points(0);
        rows[&read].len() / self.coders[0].d_in.max(1)
    }

    /// The trained dictionary or transcoders.
    pub(super) fn trained(&self) -> Result<Opened> {
        if !self.settings.is_cross_layer() {
            return self.dictionary(0).map(Opened::Dictionary);
        }
        let layers = (0..self.coders.len()).map(|layer| self.dictionary(layer)).collect::<Result<Vec<Dictionary>>>()?;
        let across = (0..self.coders.len()).map(|layer| self.across(layer)).collect();
        Ok(Opened::Transcoders(Transcoders::of_parts(self.settings.name.clone(), layers, across)))
    }
}

/// Further methods of a training run, for `hooklens features train`.
pub trait TrainingJob: Sized {
    /// Sets the interval between logged steps. The last step is always logged. Default 10.
    fn log_every(self, steps: usize) -> Self;

    /// Declares that the caller has already locked the checkpoint folder.
    fn locked(self) -> Self;

    /// Like [`TrainingRun::on_model`], on prompts that are read when they are needed.
    fn on_rows(
        &self,
        model: &HookedTransformer,
        prompts: &dyn RowSource,
        progress: impl FnMut(usize, &Step),
    ) -> Result<Vec<Trained>>;

    /// Path of a run's checkpoint in this folder.
    fn checkpoint_in(folder: &Path) -> PathBuf;

    /// Identity of each dictionary's training on a model's activations.
    fn identity_on_model(&self, model: &HookedTransformer, prompts: &dyn RowSource) -> Result<Vec<TrainingIdentity>>;

    /// Identity of each dictionary's training on dumps. Reads all tokens of the dumps.
    fn identity_on_dumps<P: AsRef<Path>>(&self, dumps: impl IntoIterator<Item = P>) -> Result<Vec<TrainingIdentity>>;
}

impl TrainingJob for TrainingRun {
    fn log_every(mut self, steps: usize) -> Self {
        self.log_every = steps.max(1);
        self
    }

    fn locked(mut self) -> Self {
        self.locked = true;
        self
    }

    fn on_rows(
        &self,
        model: &HookedTransformer,
        prompts: &dyn RowSource,
        progress: impl FnMut(usize, &Step),
    ) -> Result<Vec<Trained>> {
        self.resolved(model)?.run(&mut FromModel::new(model, prompts, &self.left_out)?, progress)
    }

    fn checkpoint_in(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    fn identity_on_model(&self, model: &HookedTransformer, prompts: &dyn RowSource) -> Result<Vec<TrainingIdentity>> {
        self.resolved(model)?.identities(&mut FromModel::new(model, prompts, &self.left_out)?)
    }

    fn identity_on_dumps<P: AsRef<Path>>(&self, dumps: impl IntoIterator<Item = P>) -> Result<Vec<TrainingIdentity>> {
        self.identities(&mut FromDumps::new(dumps, &self.left_out))
    }
}

/// Data that is stored next to a trained dictionary.
pub trait TrainingRecord {
    /// The log as CSV, one row per logged step.
    fn csv(&self) -> String;

    /// How the dictionary was trained, as JSON: the version of hooklens, settings, data, and held-out metrics. The data
    /// are described only if checkpoints are written.
    fn record(&self) -> Value;
}

impl TrainingRecord for Trained {
    fn csv(&self) -> String {
        let mut table = CsvTable::new(Step::NAMES, CsvLabels::Exact);
        self.log.iter().for_each(|step| table.row([], step.numbers().map(|number| number.to_string())));
        table.finish()
    }

    fn record(&self) -> Value {
        json!({
            "hooklens": env!("CARGO_PKG_VERSION"),
            "settings": self.identity.settings,
            "data": self.identity.data,
            "held_out": self.held_out,
        })
    }
}
