//! `hooklens features eval`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::args::{DtypeArg, ModelArg};
use crate::cli::corpus::CorpusArg;
use crate::cli::out::{Finding, OutFile, spare};
use crate::cli::terminal::{note, stdout};
use crate::cli::{CliResult, Failure, any_model};
use crate::driver::HookedModel;
use crate::features::{Dictionary, EvaluateOptions, Evaluation, Labels, evaluate};
use crate::plot::Histogram;

/// Latents above which decoder rows are compared only when asked.
const MANY: usize = 8192;

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    corpus: CorpusArg,
    /// The point that it reads, where its files don't say it
    #[arg(long, value_name = "POINT")]
    at: Option<String>,
    /// Leave the token of a prompt's beginning out of every measure
    #[arg(long)]
    without_bos: bool,
    /// Labels of latents, for the .csv: a .csv of `latent,label`, or a .json object
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Prompts computed together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Compare decoder rows with each other, whatever their number
    #[arg(long)]
    cosines: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the measures to a file: .json; .csv with a line a latent; .svg, .png or .html with the histogram of densities
    #[arg(long, value_name = "FILE")]
    out: Option<OutFile>,
}

pub(super) fn run(args: &EvalArgs) -> CliResult {
    let [path] = &args.model.dictionary[..] else {
        return Err(Failure::Usage("--dictionary names the one that is measured".into()));
    };
    spare(
        args.out.as_ref().map(|out| &*out.path),
        args.model.inputs().into_iter().chain(args.corpus.file()).chain(args.labels.clone()),
    )?;
    let mut dictionary = Dictionary::open(path)?;
    if let Some(point) = &args.at {
        dictionary = dictionary.at(point);
    }
    if let Some(path) = &args.labels {
        dictionary = dictionary.with_labels(Labels::read(path)?)?;
    }
    let model = any_model::plain_decoder("features eval", &args.model, args.model.options(args.dtype.dtype)?)?;
    dictionary.concerns(&model).iter().for_each(note);
    let prompts = args.corpus.rows(&model, dictionary.metadata().prepend_bos)?;
    let bos = args.without_bos.then(|| model.tokenizer().ok()?.bos()).flatten();
    let options = EvaluateOptions::new()
        .batch_size(args.batch_size as usize)
        .leaving_out(bos)
        .cosines(args.cosines || dictionary.latents() <= MANY);
    let bar = ProgressBar::new(prompts.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts {per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let measured = evaluate(&model, &dictionary, &prompts, &options, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let measured = measured?;
    match args.json {
        true => crate::cli::terminal::print_json(&measured.to_json())?,
        false => write!(stdout(), "{measured}")?,
    }
    let Some(file) = &args.out else { return Ok(()) };
    Finding { json: measured.to_json(), csv: csv(&measured, &dictionary) }.write(file, |path| {
        let active = measured.density.iter().filter(|density| **density > 0.0).map(|density| density.log10());
        Ok(Histogram::of("log10 of the share of tokens", active)?.title("density of latents").save(path)?)
    })
}

/// A line a latent, with its label where some have one.
fn csv(measured: &Evaluation, dictionary: &Dictionary) -> String {
    let labels = dictionary.labels();
    let label = |latent: usize| match labels.is_empty() {
        true => String::new(),
        false => format!(",\"{}\"", labels.get(latent).unwrap_or_default().replace('"', "\"\"")),
    };
    let at =
        |all: &[f64], latent: usize| all.get(latent).filter(|x| x.is_finite()).map_or(String::new(), f64::to_string);
    let line = |latent: usize| {
        let columns = [
            &measured.density,
            &measured.tokens_a_prompt,
            &measured.encoder_norm,
            &measured.encoder_bias,
            &measured.encoder_decoder_cosine,
            &measured.largest_decoder_cosine,
        ];
        let cells: Vec<String> = columns.iter().map(|column| at(column, latent)).collect();
        format!("{latent},{}{}\n", cells.join(","), label(latent))
    };
    let header =
        "latent,density,tokens_a_prompt,encoder_norm,encoder_bias,encoder_decoder_cosine,largest_decoder_cosine";
    let header = if labels.is_empty() { header.to_string() } else { format!("{header},label") };
    format!("{header}\n{}", (0..measured.density.len()).map(line).collect::<String>())
}
