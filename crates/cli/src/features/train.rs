//! `hooklens features train`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hooklens_hooks::{Together, check_own_file};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::locked::Locked;
use crate::args::{DtypeArg, ModelArg, ProcessArg, given_twice};
use crate::corpus::CorpusArg;
use crate::out::{said, spare, unwritten};
use crate::shard_arg::{ShardArg, name_of};
use crate::terminal::{note, stdout};
use crate::{CliResult, Failure, any_model, signals};
use hooklens_data::dump::ActivationStore;
use hooklens_features::{
    Difference, JumpReluSparsity, Objective, Opened, Trained, Training, TrainingIdentity, TrainingRun,
};
use hooklens_io::numerals::grouped;
use hooklens_model::driver::HookedModel;
use hooklens_model::model::HookedTransformer;
use hooklens_plot::{Line, LinePlot};

/// Steps that are logged at least, if there are as many.
const LOGGED: usize = 100;

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    /// A dump to train on, in the place of prompts, of a store too (s3://bucket/folder) in a build that reads them; may be
    /// given again
    #[arg(long, value_name = "FILE.safetensors|FOLDER", conflicts_with_all = ["prompt", "prompts", "concatenate"])]
    dump: Vec<PathBuf>,
    #[command(flatten)]
    corpus: CorpusArg,
    /// The points to train autoencoders of, separated by commas: one for each, from one pass. Or the point that a
    /// transcoder reads
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', required_unless_present = "cross_layer")]
    at: Vec<String>,
    /// Train a transcoder that writes this point
    #[arg(long, value_name = "POINT", conflicts_with = "cross_layer")]
    writes: Option<String>,
    /// Train a cross-layer transcoder of all MLPs
    #[arg(long, conflicts_with = "at")]
    cross_layer: bool,
    /// Give the transcoder a skip connection
    #[arg(long)]
    skip_connection: bool,
    /// Number of latents, of a cross-layer transcoder a layer
    #[arg(long, value_name = "N")]
    latents: usize,
    /// The kind
    #[arg(long, value_enum, default_value = "batchtopk")]
    architecture: Kind,
    /// Active latents a token: chosen (batchtopk, topk, matryoshka) or aimed at (jumprelu)
    #[arg(long, default_value_t = 32.0)]
    k: f64,
    /// The weight of the penalty of l1 and gated, or of jumprelu's L0 without --k
    #[arg(long, value_name = "NUMBER")]
    coefficient: Option<f32>,
    /// Penalize jumprelu's latents by the tanh of their activations, instead of aiming at --k
    #[arg(long)]
    tanh: bool,
    /// Widths of matryoshka's prefixes, separated by commas (default: an eighth, a quarter, a half)
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    widths: Vec<usize>,
    /// Tokens to train on; the prompts are gone through again if there are fewer
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    tokens: usize,
    /// Tokens a step
    #[arg(long, value_name = "N", default_value_t = 2048)]
    batch_size: usize,
    /// The learning rate (default: 2e-4 / sqrt(latents / 16384), at most 2e-3)
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f32>,
    /// What random numbers begin with; the same seed gives the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Tokens without activity after which a latent is dead (default: a tenth of all, at most 10 million)
    #[arg(long, value_name = "N")]
    dead_after: Option<usize>,
    #[command(flatten)]
    knobs: Knobs,
    /// Train on activations as they are, instead of scaling them to a mean norm of sqrt(width)
    #[arg(long)]
    no_normalize: bool,
    /// Keep the activations of the token of a prompt's beginning
    #[arg(long)]
    with_bos: bool,
    /// Write a checkpoint after every N tokens
    #[arg(long, value_name = "N")]
    checkpoint_every: Option<usize>,
    /// Go on from the checkpoint in the folder
    #[arg(long)]
    resume: bool,
    /// Train only the I-th of N shares of the points --at. `auto` is the share of a task of a Slurm job array, of `srun`, or
    /// (with its number, auto/N) of a Kubernetes indexed job; it goes on with what an earlier run left
    #[arg(long, value_name = "I/N|auto[/N]", conflicts_with_all = ["cross_layer", "writes"])]
    shard: Option<ShardArg>,
    /// The folder to write: the dictionary with training.csv and training.svg; of several, one in a folder of each point
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Settings whose defaults serve.
#[derive(Debug, Args)]
#[command(next_help_heading = "Knobs")]
struct Knobs {
    /// The share of the training in which the learning rate rises from 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    warm_up: f64,
    /// The share of the training, its end, in which the learning rate falls to 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    decay: f64,
    /// The share of the training in which penalties rise from 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    penalty_warm_up: f64,
    /// Adam's decays (default: 0.9,0.999; of jumprelu 0,0.999)
    #[arg(long, value_name = "FIRST,SECOND", value_delimiter = ',')]
    betas: Vec<f32>,
    /// The largest norm of a step's gradients; 0 for any
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f32,
    /// Batches that are held and shuffled together
    #[arg(long, value_name = "N", default_value_t = 32)]
    buffer: usize,
    /// The weight of the loss in which dead latents reconstruct what the others miss; 0 for none
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    revive: f32,
    /// Norm of decoder rows at the beginning
    #[arg(long, value_name = "NORM", default_value_t = 0.1)]
    decoder_norm: f32,
    /// Width of the window around a threshold of jumprelu in which it gets gradients (default: 0.5; with --tanh 2)
    #[arg(long, value_name = "WIDTH")]
    bandwidth: Option<f32>,
    /// Thresholds of jumprelu at the beginning
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
    /// Of a batch the k largest a token on average
    Batchtopk,
    /// The k largest of each token
    Topk,
    /// A threshold a latent
    Jumprelu,
    /// A gate and a magnitude
    Gated,
    /// A penalty of activations
    L1,
    /// BatchTopK whose first latents reconstruct alone too
    Matryoshka,
}

impl TrainArgs {
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
                _ => return Err(Failure::Usage("a transcoder reads one point".into())),
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
    let inputs = args.model.inputs().into_iter().chain(args.corpus.files()).chain(args.dump.clone());
    spare(Some(&args.out), inputs)?;
    if args.skip_connection && args.writes.is_none() {
        return Err(Failure::Usage("--skip-connection is for a transcoder, which --writes asks for".into()));
    }
    if !matches!(args.knobs.betas.len(), 0 | 2) {
        return Err(Failure::Usage("--betas are two numbers with a comma between them".into()));
    }
    let options = args.model.processed(args.dtype.dtype, args.process)?;
    let model = any_model::decoder("features train", &args.model, options)?;
    let bos = model.bos_token().filter(|_| !args.with_bos);
    let catalog = model.catalog();
    let prepend_bos = match args.dump.is_empty() {
        true => Some(model.config().default_prepend_bos),
        false => dumped_alike(args, &model)?,
    };
    let mut trainings = Vec::new();
    for training in args.trainings(catalog.n_layers())? {
        trainings.push(prepend_bos.into_iter().fold(training, Training::prepend_bos));
    }
    for name in args.at.iter().chain(&args.writes) {
        Training::check_point(&model, name)?;
    }
    if let Some(name) = given_twice(&args.at) {
        return Err(Failure::Usage(format!("--at names {name} twice, and each point has one folder")));
    }
    let several = !args.cross_layer && args.writes.is_none() && (args.at.len() > 1 || args.shard.is_some());
    let mut folders: Vec<PathBuf> = match several {
        true => args.at.iter().map(|name| args.out.join(name)).collect(),
        false => vec![args.out.clone()],
    };
    let mut place = Place { out: args.out.clone(), resume: args.resume };
    let prompts = || if args.dump.is_empty() { args.corpus.rows(&model, None) } else { Ok(Vec::new()) };
    if let Some(arg) = args.shard {
        let shard = arg.shard().map_err(Failure::Usage)?;
        let own = shard.share_of(folders.len());
        (folders, trainings) = (folders[own.clone()].to_vec(), trainings[own].to_vec());
        let resume = args.resume || arg.resumes();
        place = Place { out: args.out.join(name_of(shard)), resume };
        let interrupted = TrainingRun::checkpoint_in(&place.out).is_file();
        if folders.is_empty() {
            note(format!("share {shard} of {} points has none of them", args.at.len()));
            return Ok(());
        }
        if resume && !interrupted && folders.iter().all(|folder| is_finished(folder)) {
            let run = TrainingRun::new(trainings).leaving_out(bos);
            let told = match args.dump.is_empty() {
                false => run.identity_on_dumps(&args.dump)?,
                true => run.identity_on_model(&model, &prompts()?)?,
            };
            folders.iter().zip(&told).try_for_each(|(folder, told)| check_finished(folder, told))?;
            note(format!("share {shard} of {} points is done: {} of them", args.at.len(), folders.len()));
            return Ok(());
        }
    }
    // Until all is saved: what is there is looked at, and gone on from, by one process.
    let locked = Locked::take(folders.iter().chain([&place.out]).map(PathBuf::as_path))?;
    nothing_lost(&place, &folders)?;
    let stop = signals::stop();
    let every = args.checkpoint_every.unwrap_or(if place.resume { args.tokens / 10 } else { usize::MAX });
    // Of a short training every step is logged.
    let steps = args.tokens / args.batch_size.max(1);
    let log_every = (steps / LOGGED).clamp(1, 10);
    let run = TrainingRun::new(trainings)
        .log_every(log_every)
        .leaving_out(bos)
        .checkpoints(&place.out, every)
        .resume(place.resume)
        .locked()
        .stop_when(stop);
    let bar = ProgressBar::new(args.tokens as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens {msg} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let progress = |told: hooklens_features::Progress| {
        if told.training == 0 {
            bar.set_position(told.step.tokens as u64);
            bar.set_message(format!(
                "loss {:.3}, explained {:.3}, L0 {:.1}, dead {:.0} %",
                told.step.loss,
                told.step.explained_variance,
                told.step.l0,
                100.0 * told.step.dead
            ));
        }
    };
    let none: [&str; 0] = [];
    ActivationStore::new(&args.dump, none).incomplete()?.iter().for_each(note);
    let trained = match args.dump.is_empty() {
        false => run.on_dumps(&args.dump, progress),
        true => {
            let prompts = prompts()?;
            let tokens: usize = prompts.iter().map(Vec::len).sum();
            if tokens < args.tokens {
                note(format!(
                    "the prompts have {tokens} tokens, and are gone through {:.1} times",
                    args.tokens as f64 / tokens as f64
                ));
            }
            run.on_model(&model, &prompts, progress)
        }
    };
    bar.finish_and_clear();
    let trained = trained?;
    if let Some(left) = trained.iter().map(|one| one.left).max().filter(|left| *left > 0) {
        let again = if args.shard.is_some_and(ShardArg::resumes) { "the same command" } else { "--resume" };
        return Err(Failure::Stopped(format!("{} tokens are left; {again} goes on", grouped(left))));
    }
    for (one, folder) in trained.iter().zip(&folders) {
        save(one, folder)?;
    }
    run.remove_checkpoint()?;
    drop(locked);
    if args.shard.is_some() {
        // Of a share the checkpoint's folder is nothing else's; it may never have been made.
        std::fs::remove_dir(&place.out).ok();
    }
    trained.iter().zip(&folders).try_for_each(|(one, folder)| told(one, folder))
}

/// Whether the dumps' prompts begin with the beginning-of-sequence token, where they record that.
///
/// # Errors
/// Activations of another model, or of this one processed or edited otherwise.
fn dumped_alike(args: &TrainArgs, model: &HookedTransformer) -> Result<Option<bool>, Failure> {
    let none: [&str; 0] = [];
    let store = ActivationStore::new(&args.dump, none);
    for dump in store.unidentified()? {
        note(format!("{} does not record which model's activations it holds", dump.display()));
    }
    Ok(store.check_model(model)?.and_then(|dumped| dumped.prepend_bos))
}

/// Where a training's checkpoint is, and whether it goes on from there.
struct Place {
    out: PathBuf,
    resume: bool,
}

/// Whether a folder holds a dictionary.
fn is_finished(folder: &Path) -> bool {
    DICTIONARY.iter().any(|file| folder.join(file).exists())
}

/// Files of which a folder with a dictionary has one at least.
const DICTIONARY: [&str; 3] = ["cfg.json", "config.yaml", "sae_weights.safetensors"];

/// The file that says how a dictionary was trained.
const TOLD: &str = "training.json";

/// An error for a dictionary that was trained otherwise, or of which nothing says how.
fn check_finished(folder: &Path, now: &TrainingIdentity) -> CliResult {
    let path = folder.join(TOLD);
    let failed = |reason: String| {
        let told = format!("{} holds a dictionary {reason}; choose another place", folder.display());
        Err(Failure::Failed(told.into()))
    };
    let before = hooklens_io::regular::read(&path).ok();
    let before = before.and_then(|bytes| serde_json::from_slice::<TrainingIdentity>(&bytes).ok());
    let Some(before) = before else { return failed(format!("whose training {TOLD} does not tell")) };
    match before.difference(now) {
        None => Ok(()),
        Some(Difference::Version(reason)) => failed(format!("whose {TOLD} can't be compared: {reason}")),
        Some(Difference::Setting(name, [before, now])) => {
            failed(format!("that was trained with other settings: `{name}` is {before} there, and {now} here"))
        }
        Some(Difference::Data([before, now])) => {
            failed(format!("that was trained with other data: {before}, and here {now}"))
        }
    }
}

/// An error where the result would replace one that is there, or begin anew what could go on.
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
    let told = match (place.resume, interrupted) {
        // What a training wrote before it was killed it writes again.
        (true, true) => return Ok(()),
        (false, true) => {
            Some(format!("{out} holds the checkpoint of a training; --resume goes on, or choose another place"))
        }
        _ => folders.iter().chain([&place.out]).find(|folder| is_finished(folder)).map(|folder| {
            let there = folder.display();
            match place.resume {
                true => format!("{there} holds a dictionary, and {out} no checkpoint to go on from: it is finished"),
                false => format!("{there} holds a dictionary; choose another place"),
            }
        }),
    };
    told.map_or(Ok(()), |told| Err(Failure::Failed(told.into())))
}

/// Writes a dictionary, its log and the picture of it: all together, or none.
fn save(one: &Trained, folder: &Path) -> CliResult {
    let mut files = Together::new();
    let mut add = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        let written = files.add(&path).and_then(|file| file.write_all(bytes));
        written.map_err(|e| unwritten(&path, &e))
    };
    add("training.csv", one.csv().as_bytes())?;
    let mut how = json!(one.identity);
    how["held_out"] = json!(one.held_out);
    add(TOLD, format!("{how:#}\n").as_bytes())?;
    if !one.log.is_empty() {
        let explained =
            Line::new("of each batch", one.log.iter().map(|step| (step.tokens as f64, step.explained_variance)));
        let plot = LinePlot::new("tokens", "explained variance", [explained])?;
        add("training.svg", plot.to_svg()?.as_bytes())?;
    }
    // The description last: what is there with one is whole.
    match &one.dictionary {
        Opened::Dictionary(own) => own.add_files(folder, &mut files)?,
        Opened::Transcoders(all) => all.add_files(folder, &mut files)?,
    }
    files.finish().map_err(|e| unwritten(folder, &e))
}

/// Prints what was trained and where it is.
fn told(one: &Trained, folder: &Path) -> CliResult {
    let latents: usize = match &one.dictionary {
        Opened::Dictionary(own) => own.latents(),
        Opened::Transcoders(all) => all.layers().iter().map(hooklens_features::Dictionary::latents).sum(),
    };
    let steps = one.log.last().map_or(0, |last| last.step);
    let mut out = stdout();
    match &one.held_out[..] {
        [own] => writeln!(out, "{latents} latents, {steps} steps: {own}")?,
        layers => {
            writeln!(out, "{latents} latents, {steps} steps")?;
            layers.iter().enumerate().try_for_each(|(layer, own)| writeln!(out, "layer {layer}: {own}"))?;
        }
    }
    said(folder)
}
