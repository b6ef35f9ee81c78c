//! `hooklens attribute`.

use hooklens_analysis::activations::Analyze;
use std::io::Write;

use clap::{Args, ValueEnum};
use hooklens_hooks::{Activation, Record};
use ndarray::{ArrayD, IxDyn};
use serde_json::json;

use super::args::{DtypeArg, ModelArg, ProcessArg};
use super::out::{CsvArg, Finding, OutFile, check_finite, heatmap, prepare, print_largest, said_file};
use super::pairs::{PairArgs, Pairs};
use super::share::{Kind, Part, ShareArgs};
use super::terminal::stdout;
use super::{CliResult, Failure, load};
use hooklens_analysis::activations::{Components, Direction, Stage};
use hooklens_analysis::attribution::{EdgeScores, Gradient};
use hooklens_analysis::labeled::{self, CsvText, LabeledArray, LabeledAxis};
use hooklens_data::dump::DumpModel;
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::model::{DecoderInput, HookedTransformer};

#[derive(Debug, Args)]
pub(super) struct AttributeArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    /// What to attribute to: the logit directly (by layer, head or neuron), or the edges between components that write
    /// to the residual stream and components that read from it
    #[arg(long, value_enum, default_value = "heads")]
    pub(super) to: ToArg,
    /// The prompt that the answer follows (not for edges)
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(super) prompt: Option<String>,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    /// For edges: average N gradients along the path from one prompt to the other (EAP-IG)
    #[arg(long, value_name = "N")]
    pub(super) integrated: Option<usize>,
    /// How many of the largest scores to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    /// Shards apply to edges only
    #[command(flatten)]
    pub(super) share: ShareArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ToArg {
    /// What each layer's attention and MLP contribute to the logit
    Layers,
    /// What each head contributes to the logit
    Heads,
    /// What each neuron contributes to the logit
    Neurons,
    /// Edges from senders to receivers, by edge attribution patching
    Edges,
}

pub(super) fn run(args: &AttributeArgs) -> CliResult {
    args.share.file()?;
    prepare(args.share.path(), args.share.names(), args.model.inputs().into_iter().chain(args.pairs.file().cloned()))?;
    if args.share.shard()?.is_some() && args.to != ToArg::Edges {
        return Err(Failure::Usage("--shard requires --to edges; the other attributions use a single prompt".into()));
    }
    let model = load("attribute", &args.model, &args.dtype, args.process)?;
    if args.to == ToArg::Edges { edges(args, &model) } else { direct(args, &model) }
}

/// Direct logit attribution at the last position.
fn direct(args: &AttributeArgs, model: &HookedTransformer) -> CliResult {
    let row = match (&args.prompt, args.pairs.one_row()?) {
        (Some(text), _) => model.prompt_row(text, None)?,
        (None, Some(row)) => row,
        (None, None) => {
            let message =
                "direct attribution requires one --prompt (or --tokens) with an --answer (and optionally --wrong)";
            return Err(Failure::Usage(message.into()));
        }
    };
    let (answer, wrong) = args.pairs.answers()?;
    let recorded = model.record(&row, Record::all().positions(-1))?;
    let analysis = model.analyze(&recorded)?;
    let components: Components = match args.to {
        ToArg::Layers => analysis.decompose_resid(Stage::Final)?,
        ToArg::Neurons => analysis.stack_neuron_results(Stage::Final)?,
        _ => analysis.stack_head_results(Stage::Final)?,
    };
    let direction = Direction::token(answer.choice());
    let direction = wrong.iter().fold(direction, |direction, wrong| direction.minus(wrong.choice()));
    let shares = analysis.logit_attrs(&components, direction)?;
    let shares = Activation::from(shares).to_ndarray()?;
    let values = ArrayD::from_shape_fn(IxDyn(&[components.labels().len()]), |at| f64::from(shares[[at[0], 0, 0]]));
    let flat = labeled::matching([LabeledAxis::new("component", components.labels())], values);
    let answer = answer.label(model);
    let asked = wrong.map_or(answer.clone(), |wrong| format!("{answer} - {}", wrong.label(model)));
    check_finite(&flat)?;
    let file = args.share.file()?;
    if let Some(out) = &file {
        let json = json!({"model": args.model.model, "prompt": args.prompt, "tokens": row, "logit": asked, "attribution": flat});
        let picture = by_layer(&flat, args.to, model);
        let title = format!("logit of {asked}");
        Finding { json, csv: flat.csv(args.csv.labels()) }.write(out, heatmap(&picture, title))?;
    }
    writeln!(stdout(), "{} components of the logit of {asked}:", components.labels().len())?;
    print_largest(&flat, args.top)?;
    said_file(file.as_ref())
}

/// Reshapes heads and neurons to one row per layer, for the heatmap; other components make a single row.
fn by_layer(flat: &LabeledArray, to: ToArg, model: &HookedTransformer) -> LabeledArray {
    let layers = model.config().n_layers();
    let count = flat.values().len();
    let (rows, name) = match to {
        ToArg::Heads => (layers, "head"),
        ToArg::Neurons if count.is_multiple_of(layers) => (layers, "neuron"),
        _ => (1, "component"),
    };
    let values =
        ArrayD::from_shape_fn(IxDyn(&[rows, count / rows]), |at| flat.values()[[at[0] * (count / rows) + at[1]]]);
    let columns = match rows {
        1 => LabeledAxis::new(name, flat.axes()[0].labels.iter()),
        _ => LabeledAxis::numbered(name, count / rows),
    };
    let first = if rows == 1 { LabeledAxis::new("", [""]) } else { LabeledAxis::numbered("layer", rows) };
    labeled::matching([first, columns], values)
}

/// Keys of the settings in a shard's file that the merged report needs.
const MODEL: &str = "model";
const INTEGRATED: &str = "integrated";

fn edges(args: &AttributeArgs, model: &HookedTransformer) -> CliResult {
    if args.share.shard()?.is_none() {
        let scores = scores(args, model, args.pairs.read(model)?)?;
        let report_options =
            ReportOptions { model: &args.model.model, integrated: args.integrated, top: args.top, csv: args.csv };
        return report(&scores, &report_options, args.share.file()?.as_ref());
    }
    let settings = [
        (MODEL, args.model.model.clone()),
        ("weights", model.fingerprint_of_weights()?),
        ("dictionary", model.parts()?.join(", ")),
        ("prompts", args.pairs.described()?),
        (INTEGRATED, args.integrated.map_or("no".into(), |pieces| pieces.to_string())),
    ];
    let Some(share) = args.share.share(Kind::AttributeEdges, settings)?.filter(|share| !share.is_done()) else {
        return Ok(());
    };
    let found = args.pairs.read_share(model, &share)?.map(|pairs| scores(args, model, pairs)).transpose()?;
    share.write(found.as_ref())
}

fn scores(args: &AttributeArgs, model: &HookedTransformer, pairs: Pairs<Input>) -> Result<EdgeScores, Failure> {
    let gradient = args.integrated.map_or(Gradient::AtBase, Gradient::Integrated);
    Ok(pairs.patching(model, None)?.edges(gradient)?)
}

/// Merges the shards of an edge attribution and reports the result.
pub(super) fn merged(parts: &[Part], csv: CsvArg, out: Option<&OutFile>) -> CliResult {
    let mut shares: Vec<EdgeScores> = Vec::new();
    for part in parts {
        shares.extend(part.result()?);
    }
    let Some(first) = parts.first() else { return Ok(()) };
    let setting = |name: &str| first.settings.get(name).map_or("", String::as_str);
    let scores = EdgeScores::joined(shares).map_err(hooklens_model::error::Error::from)?;
    let report_options =
        ReportOptions { model: setting(MODEL), integrated: setting(INTEGRATED).parse().ok(), top: 10, csv };
    report(&scores, &report_options, out)
}

/// Data that the report needs besides the scores.
struct ReportOptions<'t> {
    model: &'t str,
    integrated: Option<usize>,
    top: usize,
    csv: CsvArg,
}

fn report(scores: &EdgeScores, report_options: &ReportOptions<'_>, out: Option<&OutFile>) -> CliResult {
    let count = scores.values().values().shape()[2];
    if let Some(out) = out {
        let mean = scores.mean();
        let json = json!({"model": report_options.model, "prompts": count, "integrated": report_options.integrated, "edges": mean});
        Finding { json, csv: mean.csv(report_options.csv.labels()) }.write(out, heatmap(&mean, "edges"))?;
    }
    let mut to = stdout();
    writeln!(to, "{count} prompts; edges:")?;
    for (sender, receiver, score) in scores.largest(report_options.top) {
        writeln!(
            to,
            "{sender:<8} -> {receiver:<8} {score:+.3}",
            sender = sender.to_string(),
            receiver = receiver.to_string()
        )?;
    }
    drop(to);
    said_file(out)
}
