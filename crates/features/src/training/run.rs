//! Trainings from one stream of activations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hooklens_hooks::{FolderLock, check_own_file};

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
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::error::{Error, LoadError, Result};
use hooklens_model::model::HookedTransformer;

/// The file of a checkpoint in its folder.
const FILE: &str = "checkpoint.safetensors";

/// Dictionaries trained at once, from one pass of a model or through a dump.
///
/// ```
/// use hooklens::features::{Opened, Training, TrainingRun};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let prompts: Vec<Vec<u32>> = ["When Mary and John went to the store, John gave a drink to"; 64]
///     .iter()
///     .map(|text| Ok(model.to_tokens(*text)?.row(0).to_vec()))
///     .collect::<Result<_, hooklens::Error>>()?;
/// let sae = |layer| Training::autoencoder(hook::resid_post(layer).name(), 64).k(4.0).tokens(4_000).batch_size(400);
/// let trained = TrainingRun::new([sae(1), sae(2)]).on_model(&model, &prompts, |_| {})?;
/// assert!((trained[0].held_out[0].l0 - 4.0).abs() < 0.4); // of the dictionary as it is saved
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
    /// Whether the caller has locked the folder of checkpoints.
    locked: bool,
}

/// A dictionary that was trained, and how that went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Trained {
    /// The dictionary, or the cross-layer transcoder.
    pub dictionary: Opened,
    /// Measures of some of the steps, each on its own batch, in which BatchTopK's latents are chosen.
    pub log: Vec<Step>,
    /// Measures of the dictionary as it is, on tokens that follow the training: one entry, or one per layer of a
    /// cross-layer transcoder. None of a training that was stopped.
    pub held_out: Vec<HeldOut>,
    /// Tokens that are left of a training that was stopped: see [`TrainingRun::stop_when`].
    pub left: usize,
    /// Its settings and data, of a run that keeps checkpoints.
    pub identity: TrainingIdentity,
}

/// What a run tells on its way: the training it is about, and its step.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress {
    /// The place of the training among those of the run.
    pub training: usize,
    /// What its last step measured.
    pub step: Step,
    /// Tokens of the whole training.
    pub total: usize,
}

impl TrainingRun {
    /// Trains these; they read the same batches.
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

    /// Leaves activations at these tokens out: those of texts' beginnings, say.
    pub fn leaving_out(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = tokens.into_iter().collect();
        self
    }

    /// Writes a checkpoint to a folder whenever so many tokens have been seen. It stays when all is done, until
    /// [`TrainingRun::remove_checkpoint`]: what was trained is to be saved first. One process at a time trains with the
    /// folder; a checkpoint that was damaged is refused.
    pub fn checkpoints(mut self, folder: impl Into<PathBuf>, every: usize) -> Self {
        self.checkpoints = Some((folder.into(), every.max(1)));
        self
    }

    /// Removes the checkpoint of a training that is done and saved, if there is one.
    ///
    /// # Errors
    /// A file that can't be removed.
    pub fn remove_checkpoint(&self) -> Result<()> {
        match self.checkpoint().filter(|path| path.is_file()) {
            Some(path) => Ok(std::fs::remove_file(&path).map_err(LoadError::write(&path))?),
            None => Ok(()),
        }
    }

    /// The caller has locked the folder of checkpoints already.
    pub fn locked(mut self) -> Self {
        self.locked = true;
        self
    }

    /// Where the checkpoint of a training into this folder is.
    pub fn checkpoint_in(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The file of the checkpoint.
    fn checkpoint(&self) -> Option<PathBuf> {
        self.checkpoints.as_ref().map(|(folder, _)| Self::checkpoint_in(folder))
    }

    /// Goes on from the checkpoint in the folder, if there is one, as if it had not been interrupted.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Ends behind the step at hand when this is set, with a checkpoint in the folder of [`TrainingRun::checkpoints`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// # use hooklens::features::{Training, TrainingRun};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let prompts = vec![(1..11).collect::<Vec<u32>>(); 8];
    /// let sae = Training::autoencoder(hook::resid_post(1).name(), 64).tokens(400).batch_size(40);
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let run = TrainingRun::new([sae]).checkpoints(folder.path(), 1_000_000).resume(true);
    /// let stopped = run.clone().stop_when(stop.clone()).on_model(&model, &prompts, |told| {
    ///     stop.store(told.step.step == 3, Ordering::Relaxed); // after the third step
    /// })?;
    /// assert_eq!(stopped[0].left, 400 - 3 * 40);
    /// assert_eq!(run.on_model(&model, &prompts, |_| {})?[0].left, 0); // goes on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Logs the measures of every so many steps, and of the last. Default 10.
    pub fn log_every(mut self, steps: usize) -> Self {
        self.log_every = steps.max(1);
        self
    }

    /// Trains on activations of a model that is run on prompts of token ids.
    ///
    /// # Errors
    /// Settings that make no sense, points that the model lacks, prompts that it can't run, activations that are not
    /// finite; a checkpoint that can't be written, or is of another training.
    pub fn on_model(
        &self,
        model: &HookedTransformer,
        prompts: &[Vec<u32>],
        progress: impl FnMut(Progress),
    ) -> Result<Vec<Trained>> {
        self.run(&mut FromModel::new(model, prompts, &self.left_out)?, progress)
    }

    /// Trains on dumps: folders or files that [`Dump`](hooklens_data::dump::Dump) wrote, read while they are used as an
    /// [`ActivationStore`](hooklens_data::dump::ActivationStore) reads them.
    ///
    /// # Errors
    /// As [`TrainingRun::on_model`]; a dump that lacks a point, or has no vector of it for each token.
    pub fn on_dumps<P: AsRef<Path>>(
        &self,
        dumps: impl IntoIterator<Item = P>,
        progress: impl FnMut(Progress),
    ) -> Result<Vec<Trained>> {
        self.run(&mut FromDumps::new(dumps, &self.left_out), progress)
    }

    /// Identities of these trainings on a model's activations.
    pub fn identity_on_model(&self, model: &HookedTransformer, prompts: &[Vec<u32>]) -> Result<Vec<TrainingIdentity>> {
        self.identities(&mut FromModel::new(model, prompts, &self.left_out)?)
    }

    /// Identities of these trainings on dumps. Reads all tokens of the dumps.
    pub fn identity_on_dumps<P: AsRef<Path>>(
        &self,
        dumps: impl IntoIterator<Item = P>,
    ) -> Result<Vec<TrainingIdentity>> {
        self.identities(&mut FromDumps::new(dumps, &self.left_out))
    }

    fn identities(&self, source: &mut dyn Source) -> Result<Vec<TrainingIdentity>> {
        let data = source.described()?;
        Ok(self.trainings.iter().map(|training| TrainingIdentity::new(training, &data)).collect())
    }

    fn run(&self, source: &mut dyn Source, mut progress: impl FnMut(Progress)) -> Result<Vec<Trained>> {
        let Some(first) = self.trainings.first() else { return Ok(Vec::new()) };
        for training in &self.trainings {
            training.check()?;
            if (training.batch, training.seed, training.buffer) != (first.batch, first.seed, first.buffer) {
                let reason = "trainings of one run have one batch size, seed and buffer".to_string();
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
            std::fs::create_dir_all(folder).map_err(LoadError::write(folder))?;
            FolderLock::take(folder).map_err(|error| Error::from(FeatureError::Locked(error)))
        };
        let _lock = folder.map(lock).transpose()?;
        if let Some(path) = &saved {
            check_own_file(path).map_err(LoadError::write(path))?;
        }
        // Reading everything once to tell it from other data is for those who keep checkpoints.
        let data = if saved.is_some() { source.described()? } else { String::new() };
        let serving = Serving { seed: first.seed, batch: first.batch, buffer: first.batch * first.buffer };
        let done = match &saved {
            Some(path) if self.resume && path.exists() => {
                logs = checkpoint::restore(path, &mut trainers, &data)?;
                trainers.iter().map(|trainer| trainer.tokens).max().unwrap_or(0)
            }
            _ => 0,
        };
        source.begin(&points, serving, done)?;
        if done == 0 {
            let held = source.first()?;
            for trainer in &mut trainers {
                let (inputs, outputs) = trainer.settings.all_points();
                let of = |points: &[String]| points.iter().map(|point| held[point].clone()).collect::<Vec<_>>();
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
                progress(Progress { training: place, step, total });
            }
            let seen = trainers.iter().map(|trainer| trainer.tokens).max().unwrap_or(0);
            let stop = self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
            if let (Some(path), Some(at)) = (&saved, next)
                && (seen >= at || stop)
            {
                checkpoint::save(path, &mut trainers, &logs, &data)?;
                next = self.checkpoints.as_ref().map(|(_, every)| (seen / every + 1) * every);
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
    /// Number of tokens in activations of its points.
    pub(super) fn rows(&self, rows: &Rows) -> usize {
        let (read, _) = self.settings.points(0);
        rows[&read].len() / self.coders[0].d_in.max(1)
    }

    /// What was trained.
    pub(super) fn trained(&self) -> Result<Opened> {
        if !self.settings.is_cross_layer() {
            return self.dictionary(0).map(Opened::Dictionary);
        }
        let layers = (0..self.coders.len()).map(|layer| self.dictionary(layer)).collect::<Result<Vec<Dictionary>>>()?;
        let across = (0..self.coders.len()).map(|layer| self.across(layer)).collect();
        Ok(Opened::Transcoders(Transcoders::of_parts(self.settings.name.clone(), layers, across)))
    }
}

impl Trained {
    /// The log as CSV, a row per step.
    pub fn csv(&self) -> String {
        let mut table = CsvTable::new(Step::NAMES, CsvLabels::Exact);
        self.log.iter().for_each(|step| table.row([], step.numbers().map(|number| number.to_string())));
        table.finish()
    }
}
