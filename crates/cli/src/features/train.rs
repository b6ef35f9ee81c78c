//! `hooklens features train`.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hooklens_hooks::{Together, check_own_file};
use serde_json::{Value, json};

use super::locked::Locked;
use crate::args::{DtypeArg, ModelArg, ProcessArg, given_twice};
use crate::corpus::CorpusArg;
use crate::json_result::{ModelId, print_result};
use crate::out::{Names, plural, prepare, said, unwritten};
use crate::progress::progress;
use crate::shard_arg::{ShardArg, name_of};
use crate::terminal::{note, stdout};
use crate::{CliResult, Failure, any_model, count, signals};
use hooklens_data::dump::{ActivationStore, DescribeStore, SplitByShard};
use hooklens_features::{
    DictionaryFiles, Difference, JumpReluSparsity, Objective, Opened, Step, Trained, Training, TrainingIdentity,
    TrainingJob, TrainingRecord, TrainingRun, check_point,
};
use hooklens_model::driver::HookedModel;
use hooklens_model::model::HookedTransformer;
use hooklens_plot::{Line, LinePlot, Picture};

/// Minimum number of logged steps, unless the training run has fewer steps.
const LOGGED: usize = 100;

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    /// A dump to train on instead of prompts; in a build that reads object stores, also s3://bucket/folder; may be
    /// given several times
    #[arg(long, value_name = "FILE.safetensors|FOLDER", conflicts_with_all = ["prompt", "prompts", "concatenate", "field", "skip", "limit", "sample"])]
    dump: Vec<PathBuf>,
    #[command(flatten)]
    corpus: CorpusArg,
    /// The hook points to train autoencoders on, separated by commas; all are trained in one pass. For a transcoder,
    /// the point that it reads
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', required_unless_present = "cross_layer", add = crate::completions::points())]
    at: Vec<String>,
    /// Train a transcoder that writes to this point
    #[arg(long, value_name = "POINT", conflicts_with = "cross_layer", add = crate::completions::points())]
    writes: Option<String>,
    /// Train a cross-layer transcoder of all MLPs
    #[arg(long, conflicts_with = "at")]
    cross_layer: bool,
    /// Give the transcoder a skip connection
    #[arg(long)]
    skip_connection: bool,
    /// Number of latents (per layer, for a cross-layer transcoder)
    #[arg(long, value_name = "N")]
    latents: usize,
    /// The architecture
    #[arg(long, value_enum, default_value = "batchtopk")]
    architecture: Kind,
    /// Active latents per token: exact (batchtopk, topk, matryoshka) or a target (jumprelu)
    #[arg(long, default_value_t = 32.0)]
    k: f64,
    /// Sparsity coefficient of l1 and gated; for jumprelu, use an L0 penalty with this coefficient instead of the --k
    /// target
    #[arg(long, value_name = "NUMBER")]
    coefficient: Option<f32>,
    /// Use the tanh sparsity penalty for jumprelu, instead of the --k target
    #[arg(long)]
    tanh: bool,
    /// Prefix widths for matryoshka, separated by commas (default: 1/8, 1/4 and 1/2 of the latents)
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    widths: Vec<usize>,
    /// Number of tokens to train on, such as 20000, 5M or 1e6; prompts are repeated if they have fewer
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = count::parse)]
    tokens: usize,
    /// Number of tokens per step
    #[arg(long, value_name = "N", default_value_t = 2048)]
    batch_size: usize,
    /// The learning rate (default: 2e-4 / sqrt(latents / 16384), at most 2e-3)
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f32>,
    /// Random seed; training with the same seed writes the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of tokens without an activation after which a latent counts as dead (default: a tenth of --tokens, at
    /// most 10 million)
    #[arg(long, value_name = "N", value_parser = count::parse)]
    dead_after: Option<usize>,
    #[command(flatten)]
    knobs: Knobs,
    /// Train on activations as they are, instead of scaling them to a mean norm of sqrt(d_in)
    #[arg(long)]
    no_normalize: bool,
    /// Include activations at the BOS token
    #[arg(long)]
    with_bos: bool,
    /// Write a checkpoint after every N tokens
    #[arg(long, value_name = "N", value_parser = count::parse)]
    checkpoint_every: Option<usize>,
    /// Resume from the checkpoint in the output folder
    #[arg(long)]
    resume: bool,
    /// Train only the I-th of N shards of the --at points. `auto` takes the shard from a Slurm job array, from `srun`,
    /// or (as auto/N) from a Kubernetes indexed job, and resumes what an earlier run left
    #[arg(long, value_name = "I/N|auto[/N]", conflicts_with_all = ["cross_layer", "writes"])]
    shard: Option<ShardArg>,
    /// Print measures of the trained dictionaries as JSON
    #[arg(long)]
    json: bool,
    /// The output folder, for the dictionary, training.csv and training.svg; with several points, one subfolder per
    /// point
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Settings whose defaults usually work.
#[derive(Debug, Args)]
#[command(next_help_heading = "Advanced options")]
struct Knobs {
    /// Fraction of training over which the learning rate warms up from 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    warm_up: f64,
    /// Fraction of training over which the learning rate decays to 0 at the end
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    decay: f64,
    /// Fraction of training over which sparsity penalties warm up from 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    penalty_warm_up: f64,
    /// Adam's betas (default: 0.9,0.999; for jumprelu 0,0.999)
    #[arg(long, value_name = "FIRST,SECOND", value_delimiter = ',')]
    betas: Vec<f32>,
    /// Maximum gradient norm; larger gradients are scaled down, and 0 turns clipping off
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f32,
    /// Number of batches that are buffered and shuffled together
    #[arg(long, value_name = "N", default_value_t = 32)]
    buffer: usize,
    /// Weight of the auxiliary loss, in which dead latents reconstruct the residual error; 0 turns it off
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    revive: f32,
    /// Initial norm of decoder rows
    #[arg(long, value_name = "NORM", default_value_t = 0.1)]
    decoder_norm: f32,
    /// Bandwidth of the gradient estimate around jumprelu thresholds (default: 0.5; with --tanh 2)
    #[arg(long, value_name = "WIDTH")]
    bandwidth: Option<f32>,
    /// Initial jumprelu threshold
    #[arg(long, value_name = "NUMBER", default_value_t = 0.1)]
    threshold: f32,
}

impl Knobs {
    fn turn(&self, training: Training) -> Training {
        let training = training
            .schedule(self.warm_up, self.decay)
            .penalty_warm_up(self.penalty_warm_up)
            .clip(self.clip)
            .buffer(self.buffer)
            .revive(self.revive)
            .decoder_norm(self.decoder_norm);
        match self.betas[..] {
            [first, second] => training.betas(first, second),
            _ => training,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// BatchTopK: the k * batch largest activations of a batch
    Batchtopk,
    /// TopK: the k largest activations of each token
    Topk,
    /// JumpReLU: a learned threshold per latent
    Jumprelu,
    /// Gated: separate gate and magnitude
    Gated,
    /// ReLU with an L1 penalty
    L1,
    /// Matryoshka BatchTopK: prefixes of the latents also reconstruct on their own
    Matryoshka,
}

/// Maximum number of latents. More would not fit into the memory of any machine, even with only two weights each.
const MOST_LATENTS: usize = 1 << 40;

impl TrainArgs {
    /// Checks numbers that depend on each other. The library checks them too, but its errors do not name the options.
    fn check_numbers(&self) -> CliResult {
        let (k, latents) = (self.k, self.latents);
        let is = |kinds: &[Kind]| kinds.contains(&self.architecture);
        let message = if self.batch_size == 0 {
            "--batch-size is 0, but must be at least 1".into()
        } else if is(&[Kind::Topk]) && k.fract() != 0.0 {
            format!("--k {k} is not a whole number, which --architecture topk requires")
        } else if self.coefficient.is_some() && !is(&[Kind::Jumprelu, Kind::Gated, Kind::L1]) {
            "--coefficient requires --architecture jumprelu, gated or l1".into()
        } else if !self.widths.is_empty() && !is(&[Kind::Matryoshka]) {
            "--widths requires --architecture matryoshka".into()
        } else if (self.tanh || self.knobs.bandwidth.is_some()) && !is(&[Kind::Jumprelu]) {
            "--tanh and --bandwidth require --architecture jumprelu".into()
        } else if latents > MOST_LATENTS {
            format!("--latents {latents} is more than the maximum of {MOST_LATENTS}")
        } else if !is(&[Kind::Gated, Kind::L1]) && k > latents as f64 {
            format!("--k {k} is more than --latents {latents}; pass --k {latents} or less, or more latents")
        } else if self.tokens < self.batch_size {
            let (tokens, batch) = (self.tokens, self.batch_size);
            format!("--tokens {tokens} is less than --batch-size {batch}; pass more tokens or a smaller batch size")
        } else {
            return Ok(());
        };
        Err(Failure::Usage(message))
    }

    fn objective(&self) -> Objective {
        let coefficient = self.coefficient;
        match self.architecture {
            Kind::Batchtopk => Objective::BatchTopK { k: self.k },
            Kind::Topk => Objective::TopK { k: self.k as usize },
            Kind::L1 => Objective::L1 { coefficient: coefficient.unwrap_or(5.0) },
            Kind::Gated => Objective::Gated { coefficient: coefficient.unwrap_or(5.0) },
            Kind::Matryoshka => {
                let shares = [8, 4, 2].map(|part| self.latents / part);
                let widths = if self.widths.is_empty() { shares.to_vec() } else { self.widths.clone() };
                Objective::Matryoshka { k: self.k, widths }
            }
            Kind::Jumprelu => {
                let sparsity = match (self.tanh, coefficient) {
                    (true, coefficient) => {
                        JumpReluSparsity::Tanh { coefficient: coefficient.unwrap_or(5.0), scale: 4.0 }
                    }
                    (false, Some(coefficient)) => JumpReluSparsity::Step { coefficient },
                    (false, None) => JumpReluSparsity::Quadratic { coefficient: 1.0, target: self.k as f32 },
                };
                let bandwidth = self.knobs.bandwidth.unwrap_or(if self.tanh { 2.0 } else { 0.5 });
                Objective::JumpRelu { sparsity, bandwidth, threshold: self.knobs.threshold }
            }
        }
    }

    fn trainings(&self, layers: usize) -> Result<Vec<Training>, Failure> {
        let trainings: Vec<Training> = match (&self.writes, self.cross_layer) {
            (_, true) => vec![Training::cross_layer(layers, self.latents)],
            (Some(write), _) => match &self.at[..] {
                [read] => vec![Training::transcoder(read, write, self.latents).skip(self.skip_connection)],
                _ => return Err(Failure::Usage("--writes requires exactly one --at point".into())),
            },
            (None, _) => self.at.iter().map(|point| Training::autoencoder(point, self.latents)).collect(),
        };
        let one = |training: Training| {
            let training = training
                .objective(self.objective())
                .tokens(self.tokens)
                .batch_size(self.batch_size)
                .seed(self.seed)
                .normalize(!self.no_normalize)
                .model(&self.model.model);
            let training = self.knobs.turn(training);
            let training = self.learning_rate.into_iter().fold(training, Training::learning_rate);
            self.dead_after.into_iter().fold(training, Training::dead_after)
        };
        Ok(trainings.into_iter().map(one).collect())
    }
}

pub(super) fn run(args: &TrainArgs) -> CliResult {
    args.check_numbers()?;
    let inputs = args.model.inputs().into_iter().chain(args.corpus.files()).chain(args.dump.clone());
    prepare(Some(&args.out), Names::Folder, inputs)?;
    if args.skip_connection && args.writes.is_none() {
        return Err(Failure::Usage("--skip-connection requires --writes".into()));
    }
    if !matches!(args.knobs.betas.len(), 0 | 2) {
        return Err(Failure::Usage("--betas requires two numbers, separated by a comma".into()));
    }
    let options = args.model.processed(args.dtype.dtype, args.process)?;
    let model = any_model::decoder("features train", &args.model, options)?;
    let bos = model.bos_token().filter(|_| !args.with_bos);
    let catalog = model.catalog();
    let prepend_bos = match args.dump.is_empty() {
        true => Some(model.config().default_prepend_bos()),
        false => dumped_alike(args, &model)?,
    };
    let mut trainings = Vec::new();
    for training in args.trainings(catalog.n_layers())? {
        trainings.push(prepend_bos.into_iter().fold(training, Training::prepend_bos));
    }
    for name in args.at.iter().chain(&args.writes) {
        check_point(&model, name)?;
    }
    if let Some(name) = given_twice(&args.at) {
        return Err(Failure::Usage(format!("--at names {name} twice")));
    }
    let several = !args.cross_layer && args.writes.is_none() && (args.at.len() > 1 || args.shard.is_some());
    let mut folders: Vec<PathBuf> = match several {
        true => args.at.iter().map(|name| args.out.join(name)).collect(),
        false => vec![args.out.clone()],
    };
    let mut place = Place { out: args.out.clone(), resume: args.resume };
    let prompts = || args.corpus.source(&model, None);
    if let Some(arg) = args.shard {
        let shard = arg.shard()?;
        let own = shard.share_of(folders.len());
        (folders, trainings) = (folders[own.clone()].to_vec(), trainings[own].to_vec());
        let resume = args.resume || arg.resumes();
        place = Place { out: args.out.join(name_of(shard)), resume };
        let interrupted = TrainingRun::checkpoint_in(&place.out).is_file();
        if folders.is_empty() {
            note(format!("shard {shard} of {} points is empty, so there is nothing to train", args.at.len()));
            return Ok(());
        }
        if resume && !interrupted && folders.iter().all(|folder| is_finished(folder)) {
            let run = TrainingRun::new(trainings).exclude_tokens(bos);
            let identities = match args.dump.is_empty() {
                false => run.identity_on_dumps(&args.dump)?,
                true => run.identity_on_model(&model, &*prompts()?)?,
            };
            let mut by_tokens = None;
            for (number, (folder, identity)) in folders.iter().zip(&identities).enumerate() {
                // Earlier versions recorded a hash of all tokens.
                let identity = if args.dump.is_empty() && recorded_tokens(folder) {
                    let all = match by_tokens.take() {
                        Some(all) => all,
                        None => run.identity_on_model(&model, &Cow::Owned(args.corpus.rows(&model, None)?))?,
                    };
                    by_tokens.insert(all)[number].clone()
                } else {
                    identity.clone()
                };
                check_finished(folder, &identity)?;
            }
            note(format!(
                "shard {shard} of {} points is already complete: its {} points have been trained",
                args.at.len(),
                folders.len()
            ));
            return Ok(());
        }
    }
    // Held until everything is saved, so that only one process checks for and resumes a checkpoint.
    let locked = Locked::take(folders.iter().chain([&place.out]).map(PathBuf::as_path))?;
    nothing_lost(&place, &folders)?;
    if place.resume && TrainingRun::checkpoint_in(&place.out).is_file() {
        note(format!("resuming from the checkpoint in {}", place.out.display()));
    }
    let stop = signals::stop();
    let every = args.checkpoint_every.unwrap_or(if place.resume { args.tokens / 10 } else { usize::MAX });
    // Short training runs log every step.
    let steps = args.tokens.div_ceil(args.batch_size);
    if steps < FEW {
        note(format!(
            "only {} of {} tokens; use a smaller --batch-size or more --tokens to train for more steps",
            plural(steps, "step"),
            args.batch_size
        ));
    }
    let log_every = (steps / LOGGED).clamp(1, 10);
    let run = TrainingRun::new(trainings)
        .log_every(log_every)
        .exclude_tokens(bos)
        .checkpoints(&place.out, every)
        .resume(place.resume)
        .locked()
        .stop_when(stop);
    let bar = progress(args.tokens as u64, "{bar:30} {pos}/{len} tokens {per_sec} {msg} {eta}");
    let show = |dictionary: usize, step: &Step| {
        if dictionary == 0 {
            bar.set_position(step.tokens as u64);
            bar.set_message(format!(
                "loss {:.3}, explained {:.3}, L0 {:.1}, dead {:.0} %",
                step.loss,
                step.explained_variance,
                step.l0,
                100.0 * step.dead
            ));
        }
    };
    let none: [&str; 0] = [];
    ActivationStore::new(&args.dump, none).incomplete()?.iter().for_each(note);
    let trained = match args.dump.is_empty() {
        false => run.on_dumps(&args.dump, show),
        true => run.on_rows(&model, &*prompts()?, show),
    };
    bar.finish_and_clear();
    let trained = trained?;
    if let Some(left) = trained.iter().map(|one| one.left).max().filter(|left| *left > 0) {
        let again = if args.shard.is_some_and(ShardArg::resumes) { "the same command" } else { "--resume" };
        return Err(Failure::Stopped(format!("{} left; continue with {again}", plural(left, "token"))));
    }
    for (one, folder) in trained.iter().zip(&folders) {
        save(one, folder)?;
    }
    run.remove_checkpoint()?;
    drop(locked);
    if args.shard.is_some() {
        // A shard's checkpoint folder is used for nothing else. It may never have been created.
        std::fs::remove_dir(&place.out).ok();
    }
    if args.json {
        let dictionaries: Vec<Value> =
            trained.iter().zip(&folders).map(|(one, folder)| described(one, folder)).collect();
        return print_result(Some(&ModelId::of(&args.model.model, &model)?), json!({"dictionaries": dictionaries}));
    }
    trained.iter().zip(&folders).try_for_each(|(one, folder)| report(one, folder))
}

/// Checks that the dumps hold activations of this model. Returns whether their prompts begin with the
/// beginning-of-sequence token, if they record it.
///
/// # Errors
/// Fails if the activations are from a different model, or from this model with different processing or edits.
fn dumped_alike(args: &TrainArgs, model: &HookedTransformer) -> Result<Option<bool>, Failure> {
    let none: [&str; 0] = [];
    let store = ActivationStore::new(&args.dump, none);
    for dump in store.unidentified()? {
        note(format!("{} does not record which model its activations come from", dump.display()));
    }
    Ok(store.check_model(model)?.and_then(|dumped| dumped.prepend_bos()))
}

/// Folder of a training run's checkpoint, and whether to resume from it.
struct Place {
    out: PathBuf,
    resume: bool,
}

/// Whether a folder contains a dictionary.
fn is_finished(folder: &Path) -> bool {
    DICTIONARY.iter().any(|file| folder.join(file).exists())
}

/// A folder with a dictionary contains at least one of these files.
const DICTIONARY: [&str; 3] = ["cfg.json", "config.yaml", "sae_weights.safetensors"];

/// Number of steps below which a note says that the training run is too short.
const FEW: usize = 50;

/// File that records how a dictionary was trained.
const TOLD: &str = "training.json";

/// Whether the dictionary in a folder records a hash of the tokens that it was trained on, not their files.
fn recorded_tokens(folder: &Path) -> bool {
    let record = hooklens_io::regular::read(&folder.join(TOLD)).ok();
    let record = record.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    record.is_some_and(|record| record["data"].is_string() || record["data"]["prompts"].is_number())
}

/// Fails if the dictionary in `folder` was trained with different settings or data, or does not record how it was
/// trained.
fn check_finished(folder: &Path, now: &TrainingIdentity) -> CliResult {
    let path = folder.join(TOLD);
    let failed = |reason: String| {
        let message = format!("{} already contains a dictionary {reason}; choose another --out", folder.display());
        Err(Failure::Failed(message.into()))
    };
    let before = hooklens_io::regular::read(&path).ok();
    let before = before.and_then(|bytes| serde_json::from_slice::<TrainingIdentity>(&bytes).ok());
    let Some(before) = before else { return failed(format!("without a readable {TOLD}")) };
    match before.difference(now) {
        None => Ok(()),
        Some(Difference::Version(reason)) => failed(format!("whose {TOLD} cannot be compared: {reason}")),
        Some(Difference::Setting(name, [before, now])) => {
            failed(format!("that was trained with other settings: `{name}` was {before} and is now {now}"))
        }
        Some(Difference::Data([before, now])) => failed(format!("that was trained on other data: {before}, not {now}")),
    }
}

/// Fails if training would overwrite an existing dictionary, or restart one that has a checkpoint.
fn nothing_lost(place: &Place, folders: &[PathBuf]) -> CliResult {
    let own = |path: &Path| check_own_file(path).map_err(|e| unwritten(path, &e));
    own(&TrainingRun::checkpoint_in(&place.out))?;
    for folder in folders.iter().chain([&place.out]) {
        for name in ["training.csv", TOLD, "training.svg"].iter().chain(&DICTIONARY) {
            own(&folder.join(name))?;
        }
    }
    let out = place.out.display();
    let interrupted = TrainingRun::checkpoint_in(&place.out).is_file();
    let problem = match (place.resume, interrupted) {
        // A killed training run may have left some of its output files. Resuming overwrites them.
        (true, true) => return Ok(()),
        (false, true) => {
            Some(format!("{out} contains a training checkpoint; continue it with --resume, or choose another --out"))
        }
        _ => folders.iter().chain([&place.out]).find(|folder| is_finished(folder)).map(|folder| {
            let there = folder.display();
            match place.resume {
                true => format!(
                    "{there} already contains a finished dictionary, and {out} contains no checkpoint to resume; \
                     choose another --out"
                ),
                false => format!("{there} already contains a dictionary; choose another --out"),
            }
        }),
    };
    problem.map_or(Ok(()), |problem| Err(Failure::Failed(problem.into())))
}

/// Writes a dictionary, its training log and a plot of the log, all or none of them.
fn save(one: &Trained, folder: &Path) -> CliResult {
    let mut files = Together::new();
    let mut add = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        let written = files.add(&path).and_then(|file| file.write_all(bytes));
        written.map_err(|e| unwritten(&path, &e))
    };
    add("training.csv", one.csv().as_bytes())?;
    add(TOLD, format!("{:#}\n", one.record()).as_bytes())?;
    if !one.log.is_empty() {
        let explained =
            Line::new("of each batch", one.log.iter().map(|step| (step.tokens as f64, step.explained_variance)));
        let plot = LinePlot::new("tokens", "explained variance", [explained])?;
        add("training.svg", plot.to_svg()?.as_bytes())?;
    }
    // The configuration comes last, so a folder that has one is complete.
    match &one.dictionary {
        Opened::Dictionary(own) => own.add_files(folder, &mut files)?,
        Opened::Transcoders(all) => all.add_files(folder, &mut files)?,
    }
    files.finish().map_err(|e| unwritten(folder, &e))
}

/// Number of latents of a trained dictionary, in all layers.
fn latents(one: &Trained) -> usize {
    match &one.dictionary {
        Opened::Dictionary(own) => own.latents(),
        Opened::Transcoders(all) => all.layers().iter().map(hooklens_features::Dictionary::latents).sum(),
    }
}

/// A trained dictionary as JSON.
fn described(one: &Trained, folder: &Path) -> Value {
    let steps = one.log.last().map_or(0, |last| last.step);
    json!({"out": folder, "latents": latents(one), "steps": steps, "held_out": one.held_out})
}

/// Prints measures of the trained dictionary and where it was saved.
fn report(one: &Trained, folder: &Path) -> CliResult {
    let latents = plural(latents(one), "latent");
    let steps = plural(one.log.last().map_or(0, |last| last.step), "step");
    let mut out = stdout();
    match &one.held_out[..] {
        [own] => writeln!(out, "{latents}, {steps}: {own}")?,
        layers => {
            writeln!(out, "{latents}, {steps}")?;
            layers.iter().enumerate().try_for_each(|(layer, own)| writeln!(out, "layer {layer}: {own}"))?;
        }
    }
    said(folder)
}
