//! `hooklens features eval`.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;

use super::one::LayerArg;
use crate::args::{DtypeArg, ModelArg, ProcessArg};
use crate::corpus::CorpusArg;
use crate::json_result::ModelId;
use crate::out::{CsvArg, Finding, prepare};
use crate::picture_args::PngArg;
use crate::progress::of_pieces;
use crate::share::{Kind, Part, Share, ShareArgs};
use crate::share_report::ShareReport;
use crate::terminal::{Stdout, note};
use crate::{CliResult, Failure, any_model};
use hooklens_data::corpus::RowSource;
use hooklens_data::dump::DumpModel;
use hooklens_features::{
    Dictionary, DictionaryFiles, EvaluateOptions, Evaluation, EvaluationShard, Labels, Opened, SetEvaluation,
    Transcoders,
};
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::model::HookedTransformer;
use hooklens_plot::Histogram;

/// Number of latents above which decoder rows are compared only if `--cosines` is given.
const MANY: usize = 8192;

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    #[command(flatten)]
    layer: LayerArg,
    #[command(flatten)]
    corpus: CorpusArg,
    /// The hook point that the dictionary reads, if its files don't specify one
    #[arg(long, value_name = "POINT", add = crate::completions::points())]
    at: Option<String>,
    /// Exclude the BOS token from all metrics, regardless of the dictionary's configuration
    #[arg(long, conflicts_with = "all_tokens")]
    without_bos: bool,
    /// Labels of latents to include in a .csv output: a .csv of `latent,label`, or a .json object
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Number of prompts computed together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Compute cosines between decoder rows even for large dictionaries
    #[arg(long)]
    cosines: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "shard")]
    json: bool,
    #[command(flatten)]
    csv: CsvArg,
    #[command(flatten)]
    png: PngArg,
    /// The --out file can be .json; .csv with one row per latent; or .svg, .png or .html with a histogram of densities
    #[command(flatten)]
    share: ShareArgs,
}

impl EvalArgs {
    fn to<'t>(&self, model: &'t dyn Fn() -> Result<ModelId, Failure>) -> Result<ShareReport<'t>, Failure> {
        let (picture, out) = (self.png.into(), self.share.file()?);
        Ok(ShareReport { model, shards: None, json: self.json, csv: self.csv, picture, out })
    }
}

pub(super) fn run(args: &EvalArgs) -> CliResult {
    let [path] = &args.model.dictionary[..] else {
        return Err(Failure::Usage("exactly one --dictionary is required".into()));
    };
    args.share.file()?;
    prepare(
        args.share.path(),
        args.share.names(),
        args.model.inputs().into_iter().chain(args.corpus.files()).chain(args.labels.clone()),
    )?;
    if args.share.shard()?.is_some() && args.labels.is_some() {
        return Err(Failure::Usage("--labels applies to .csv output, which --shard does not write".into()));
    }
    let model =
        any_model::plain_decoder("features eval", &args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    match args.layer.open(path, &args.model)? {
        Opened::Dictionary(one) => of_one(args, &model, one),
        Opened::Transcoders(_) if args.at.is_some() => {
            Err(Failure::Usage("--at requires a single dictionary; choose one with --layer N".into()))
        }
        Opened::Transcoders(all) => of_all(args, &model, &all),
    }
}

/// Prompts and options of an evaluation, and the shard it belongs to.
struct Asked<'m> {
    prompts: Box<dyn RowSource + 'm>,
    /// The pieces to evaluate.
    pieces: Range<usize>,
    /// Ids of the excluded tokens.
    left_out: Vec<u32>,
    options: EvaluateOptions,
    share: Option<Share>,
}

/// Collects what to evaluate; `None` if the shard was already evaluated.
fn asked<'m>(
    args: &EvalArgs,
    model: &'m HookedTransformer,
    one: &Dictionary,
    hash: impl Fn() -> hooklens_model::error::Result<String>,
) -> Result<Option<Asked<'m>>, Failure> {
    one.compatibility_warnings(model, one.metadata().prepend_bos).iter().for_each(note);
    let prompts = args.corpus.source(model, one.metadata().prepend_bos)?;
    let pieces = 0..prompts.pieces();
    let cosines = args.cosines || one.latents() <= MANY;
    let bos = args.without_bos.then(|| model.bos_token()).flatten();
    let excluded = one.metadata().exclude_special_tokens.ids(model)?;
    let left_out: Vec<u32> = excluded.into_iter().chain(bos).collect();
    let options = EvaluateOptions::new().batch_size(args.batch_size as usize).cosines(cosines);
    if args.share.shard()?.is_none() {
        return Ok(Some(Asked { prompts, pieces, left_out, options, share: None }));
    }
    let paths: Vec<String> = args.model.dictionary.iter().map(|path| path.display().to_string()).collect();
    let settings = [
        ("model", args.model.model.clone()),
        ("weights", model.fingerprint_of_weights()?),
        ("dictionary", format!("{} ({})", paths.join(", "), hash()?)),
        ("at", args.at.clone().unwrap_or_default()),
        ("prompts", prompts.described()?.to_string()),
        ("batch size", args.batch_size.to_string()),
        ("tokens left out", left_out.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        ("cosines", cosines.to_string()),
    ];
    let Some(share) = args.share.share(Kind::FeaturesEval, settings)?.filter(|share| !share.is_done()) else {
        return Ok(None);
    };
    let pieces = share.of(prompts.pieces());
    Ok(Some(Asked { prompts, pieces, left_out, options, share: Some(share) }))
}

/// Rows of token ids, which move a progress bar when they are read.
fn rows<'p>(
    prompts: &'p (dyn RowSource + 'p),
    pieces: Range<usize>,
    bar: &'p ProgressBar,
) -> impl Iterator<Item = hooklens_model::error::Result<Vec<u32>>> + 'p {
    let start = pieces.start;
    prompts.open_all(pieces, 0).map(move |row| {
        bar.set_position((row.piece - start) as u64);
        row.tokens
    })
}

fn of_one(args: &EvalArgs, model: &HookedTransformer, mut one: Dictionary) -> CliResult {
    if let Some(point) = &args.at {
        one = one.at(point);
    }
    if let Some(path) = &args.labels {
        one = one.with_labels(Labels::read(path)?)?;
    }
    let Some(Asked { prompts, pieces, left_out, options, share }) = asked(args, model, &one, || one.fingerprint())?
    else {
        return Ok(());
    };
    let bar = of_pieces(pieces.len());
    let one = one.exclude_tokens(left_out);
    let rows = rows(&*prompts, pieces, &bar);
    let measured = EvaluationShard::of_rows(model, &one, rows, &options);
    bar.finish_and_clear();
    match share {
        Some(share) => share.write(Some(&measured?)),
        None => {
            let id = || Ok(ModelId::of(&args.model.model, model)?);
            report(measured?.evaluation()?, one.labels(), &args.to(&id)?)
        }
    }
}

fn of_all(args: &EvalArgs, model: &HookedTransformer, all: &Transcoders) -> CliResult {
    let Some(first) = all.layers().first() else { return Ok(()) };
    if args.labels.is_some() {
        return Err(Failure::Usage("--labels requires a single dictionary; choose one with --layer N".into()));
    }
    let Some(Asked { prompts, pieces, left_out, options, share }) = asked(args, model, first, || all.fingerprint())?
    else {
        return Ok(());
    };
    let bar = of_pieces(pieces.len());
    let all = &all.clone().exclude_tokens(left_out);
    let measured = EvaluationShard::of_transcoders_rows(model, all, rows(&*prompts, pieces, &bar), &options);
    bar.finish_and_clear();
    match share {
        Some(share) => share.write(Some(&measured?)),
        None => {
            let labels: Vec<&Labels> = all.layers().iter().map(Dictionary::labels).collect();
            let id = || Ok(ModelId::of(&args.model.model, model)?);
            report_all(&measured?.set_evaluation()?, &labels, &args.to(&id)?)
        }
    }
}

/// Merges the shards of an evaluation and reports the result.
pub(crate) fn merged(parts: &[Part], to: &ShareReport<'_>) -> CliResult {
    let mut shares: Vec<EvaluationShard> = Vec::new();
    for part in parts {
        shares.extend(part.result()?);
    }
    let all = EvaluationShard::joined(shares)?;
    let none = Labels::default();
    match all.layers() {
        1 => report(all.evaluation()?, &none, to),
        layers => report_all(&all.set_evaluation()?, &vec![&none; layers], to),
    }
}

/// Note printed if there are too few prompts for intervals.
const NO_INTERVALS: &str = "too few different prompts for intervals; use about 10 or more";

fn report(measured: Evaluation, labels: &Labels, to: &ShareReport<'_>) -> CliResult {
    if measured.intervals.is_empty() {
        note(NO_INTERVALS);
    }
    let png = to.picture.png_only()?;
    Finding {
        json: || to.result(measured.to_json()),
        csv: || csv([(&measured, labels)], false, to.csv.labels()),
        picture: |path: &Path| picture([&measured], png, path),
        text: |out: &mut Stdout| Ok(write!(out, "{measured}")?),
    }
    .report(to.out.as_ref(), to.json)
}

fn report_all(measured: &SetEvaluation, labels: &[&Labels], to: &ShareReport<'_>) -> CliResult {
    if measured.layers.iter().all(|layer| layer.intervals.is_empty()) {
        note(NO_INTERVALS);
    }
    let png = to.picture.png_only()?;
    Finding {
        json: || to.result(measured.to_json()),
        csv: || csv(measured.layers.iter().zip(labels.iter().copied()), true, to.csv.labels()),
        picture: |path: &Path| picture(&measured.layers, png, path),
        text: |out: &mut Stdout| Ok(write!(out, "{measured}")?),
    }
    .report(to.out.as_ref(), to.json)
}

/// Saves a histogram of the densities of all active latents.
fn picture<'e>(measured: impl IntoIterator<Item = &'e Evaluation>, png: PngArg, path: &Path) -> CliResult {
    let all = measured.into_iter().flat_map(|one| &one.density).filter(|density| **density > 0.0);
    let active: Vec<f64> = all.map(|density| density.log10()).collect();
    let title = format!("density of {} active latents", active.len());
    let histogram = Histogram::of("density (log10 of the fraction of tokens)", active)?.title(title);
    png.save(&histogram, path, |path| histogram.save(path))
}

/// CSV with one row per latent, starting with a layer column if there are several layers, and with labels if there are
/// any.
fn csv<'e>(all: impl IntoIterator<Item = (&'e Evaluation, &'e Labels)>, layers: bool, kind: CsvLabels) -> String {
    let all: Vec<_> = all.into_iter().collect();
    let labeled = all.iter().any(|(_, labels)| labels.iter().next().is_some());
    let measures = [
        "density",
        "tokens_a_prompt",
        "encoder_norm",
        "encoder_bias",
        "encoder_decoder_cosine",
        "largest_decoder_cosine",
    ];
    let names = layers.then_some("layer").into_iter().chain(["latent"]).chain(measures);
    let mut table = CsvTable::new(names.chain(labeled.then_some("label")), kind);
    for (layer, (measured, labels)) in all.into_iter().enumerate() {
        let [density, tokens, norm, bias, cosine, largest] = measured.feature_metrics().map(|(_, values)| values);
        let columns = [density, tokens, norm, bias, cosine, largest];
        for latent in 0..density.len() {
            let at = |all: &[f64]| all.get(latent).filter(|x| x.is_finite()).map_or(String::new(), f64::to_string);
            let places = layers.then(|| layer.to_string()).into_iter().chain([latent.to_string()]);
            table.values(places.chain(columns.map(at)));
            table.labels(labeled.then(|| labels.get(latent).unwrap_or_default()));
            table.end_row();
        }
    }
    table.finish()
}
