//! `hooklens attribute`.

use hooklens_analysis::activations::Analyze;
use std::io::Write;
use std::path::Path;

use clap::{Args, ValueEnum};
use hooklens_hooks::{Activation, Record};
use ndarray::{ArrayD, IxDyn};
use serde_json::json;

use super::args::{DtypeArg, ModelArg, ProcessArg};
use super::json_result::{ModelId, with_header};
use super::out::{Column, CsvArg, Finding, check_finite, plural, prepare, print_largest};
use super::pair_file::{Line, PairToken};
use super::pairs::{PairArgs, Pairs, metric_and_unit};
use super::picture_args::PictureArgs;
use super::share::{Kind, Part, ShareArgs};
use super::share_report::ShareReport;
use super::terminal::Stdout;
use super::uncertainty::{self, with_intervals};
use super::{CliResult, Failure, load};
use hooklens_analysis::activations::{Components, Direction, Stage};
use hooklens_analysis::attribution::{EdgeScores, Gradient};
use hooklens_analysis::labeled::{self, LabeledArray, LabeledAxis};
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
    /// What to score: layers, heads or neurons by their direct contribution to the logit; or edges between components
    /// that write to the residual stream and components that read from it
    #[arg(long, value_enum, default_value = "heads")]
    pub(super) to: ToArg,
    /// The prompt that the answer follows (not for edges)
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tokens", "clean", "pairs", "ioi"])]
    pub(super) prompt: Option<String>,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    /// For edges: average N gradients along the path from one prompt to the other (EAP-IG)
    #[arg(long, value_name = "N")]
    pub(super) integrated: Option<usize>,
    /// How many of the largest scores to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "shard")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
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
    prepare(
        args.share.path(),
        args.share.names(),
        args.model.inputs().into_iter().chain(args.pairs.file().map(Into::into)),
    )?;
    let shard = args.share.shard()?;
    if args.to != ToArg::Edges {
        if shard.is_some() {
            let message = "--shard requires --to edges; the other attributions use a single prompt";
            return Err(Failure::Usage(message.into()));
        }
        args.pairs.check_direct()?;
        if args.integrated.is_some() {
            return Err(Failure::Usage("--integrated requires --to edges".into()));
        }
    }
    let model = load("attribute", &args.model, &args.dtype, args.process)?;
    if args.to == ToArg::Edges { edges(args, &model) } else { direct(args, &model) }
}

/// A prompt whose next token is attributed.
struct Asked {
    row: Vec<u32>,
    answer: PairToken,
    wrong: Option<PairToken>,
}

impl Asked {
    /// The logit, or difference of logits, that is attributed.
    fn label(&self, model: &HookedTransformer) -> String {
        let answer = self.answer.label(model);
        self.wrong.as_ref().map_or(answer.clone(), |wrong| format!("{answer} - {}", wrong.label(model)))
    }
}

/// The prompts of a direct attribution: one with `--prompt`, or the clean prompts of pairs.
fn asked(args: &AttributeArgs, model: &HookedTransformer) -> Result<Vec<Asked>, Failure> {
    if let Some(text) = &args.prompt {
        let (answer, wrong) = args.pairs.answers()?;
        let wrong = wrong.filter(|_| args.pairs.compares());
        return Ok(vec![Asked { row: model.prompt_row(text, None)?, answer, wrong }]);
    }
    if !args.pairs.are_given() {
        let message = "--prompt with --answer is required, or several prompts with --clean, --tokens, --pairs or --ioi";
        return Err(Failure::Usage(message.into()));
    }
    let one = |line: Line| {
        let row = line.clean.row(|text| model.prompt_row(text, None))?;
        Ok(Asked { row, answer: line.answer, wrong: line.wrong.filter(|_| args.pairs.compares()) })
    };
    args.pairs.lines()?.into_iter().map(one).collect()
}

/// Direct logit attribution at the last position, `[component]`: the mean over the prompts.
fn direct(args: &AttributeArgs, model: &HookedTransformer) -> CliResult {
    let asked = asked(args, model)?;
    let mut names: Vec<String> = Vec::new();
    let mut each: Vec<Vec<f64>> = Vec::new();
    for one in &asked {
        let recorded = model.record(&one.row, Record::all().positions(-1))?;
        let analysis = model.analyze(&recorded)?;
        let components: Components = match args.to {
            ToArg::Layers => analysis.decompose_resid(Stage::Final)?,
            ToArg::Neurons => analysis.stack_neuron_results(Stage::Final)?,
            _ => analysis.stack_head_results(Stage::Final)?,
        };
        let direction = Direction::token(one.answer.choice());
        let direction = one.wrong.iter().fold(direction, |direction, wrong| direction.minus(wrong.choice()));
        let shares = Activation::from(analysis.logit_attrs(&components, direction)?).to_ndarray()?;
        names = components.labels().to_vec();
        each.push((0..names.len()).map(|at| f64::from(shares[[at, 0, 0]])).collect());
    }
    let components = LabeledAxis::new("component", &names);
    let values = ArrayD::from_shape_fn(IxDyn(&[names.len(), asked.len()]), |at| each[at[1]][at[0]]);
    let effects = labeled::matching([components, LabeledAxis::numbered("prompt", asked.len())], values);
    check_finite(&effects)?;
    let flat = effects.mean("prompt")?;
    let statistics = uncertainty::over(asked.len(), |settings| settings.effects(&effects))?;
    let statistics = statistics.as_ref();
    let mut labels: Vec<String> = asked.iter().map(|one| one.label(model)).collect();
    let logits = labels.clone();
    labels.dedup();
    let of_what = match &labels[..] {
        [label] => format!("the logit of {label}"),
        _ if asked.iter().any(|one| one.wrong.is_some()) => "the logits of answer - wrong".to_string(),
        _ => "the logits of the answers".to_string(),
    };
    let of_prompts = if asked.len() == 1 { String::new() } else { format!(", mean of {} prompts", asked.len()) };
    let rows: Vec<&Vec<u32>> = asked.iter().map(|one| &one.row).collect();
    Finding {
        json: || {
            let body = json!({"prompts": asked.len(), "tokens": rows, "logits": logits, "attribution": flat});
            Ok(with_header(Some(&ModelId::of(&args.model.model, model)?), with_intervals(body, statistics)))
        },
        csv: || uncertainty::csv(&flat, statistics, args.csv.labels()),
        picture: |path: &Path| {
            let [picture, low, high] = [Some(&flat), statistics.map(|own| &own.low), statistics.map(|own| &own.high)]
                .map(|array| array.map(|array| by_layer(array, args.to, model)));
            let (title, value) = (format!("{of_what}, n = {}", asked.len()), "contribution (logits)");
            args.picture.faded_heatmap(picture.as_ref().unwrap_or(&flat), low.zip(high), title, value)(path)
        },
        text: |to: &mut Stdout| {
            writeln!(to, "{} of {of_what}{of_prompts}:", plural(names.len(), "component"))?;
            let mut columns = vec![Column::signed("logits", &flat)];
            columns.extend(uncertainty::columns(statistics));
            print_largest(to, &columns, args.top)
        },
    }
    .report(args.share.file()?.as_ref(), args.json)
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

/// Key of the setting in a shard's file that the merged report needs.
const INTEGRATED: &str = "integrated";

fn edges(args: &AttributeArgs, model: &HookedTransformer) -> CliResult {
    if args.share.shard()?.is_none() {
        let scores = scores(args, model, args.pairs.read(model)?)?;
        let to = ShareReport {
            model: &|| Ok(ModelId::of(&args.model.model, model)?),
            shards: None,
            json: args.json,
            csv: args.csv,
            picture: args.picture,
            out: args.share.file()?,
        };
        return report(&scores, &args.pairs.metric_name(), args.integrated, args.top, &to);
    }
    let settings = [
        ("model", args.model.model.clone()),
        ("weights", model.fingerprint_of_weights()?),
        ("dictionary", model.parts()?.join(", ")),
        ("prompts", args.pairs.described()?),
        (INTEGRATED, args.integrated.map_or("no".into(), |pieces| pieces.to_string())),
    ];
    let Some(share) = args.share.share(Kind::AttributeEdges, settings)?.filter(|share| !share.is_done()) else {
        return Ok(());
    };
    let found = args.pairs.read_share(model, &share, None)?.map(|pairs| scores(args, model, pairs)).transpose()?;
    share.write(found.as_ref())
}

fn scores(args: &AttributeArgs, model: &HookedTransformer, pairs: Pairs<Input>) -> Result<EdgeScores, Failure> {
    let gradient = args.integrated.map_or(Gradient::AtBase, Gradient::Integrated);
    Ok(pairs.patching(model, None)?.edges(gradient)?)
}

/// Merges the shards of an edge attribution and reports the result.
pub(super) fn merged(parts: &[Part], to: &ShareReport<'_>) -> CliResult {
    let mut shares: Vec<EdgeScores> = Vec::new();
    for part in parts {
        shares.extend(part.result()?);
    }
    let Some(first) = parts.first() else { return Ok(()) };
    let scores = EdgeScores::joined(shares).map_err(hooklens_model::error::Error::from)?;
    report(&scores, first.metric(), first.setting(INTEGRATED).parse().ok(), 10, to)
}

fn report(scores: &EdgeScores, metric: &str, integrated: Option<usize>, top: usize, to: &ShareReport<'_>) -> CliResult {
    let count = scores.scores.values().shape()[2];
    let mean = scores.mean();
    let (metric, unit) = metric_and_unit(metric);
    let statistics = uncertainty::over(count, |settings| scores.statistics(settings))?;
    let statistics = statistics.as_ref();
    Finding {
        json: || {
            let body = json!({"prompts": count, "integrated": integrated, "edges": mean});
            to.result(with_intervals(body, statistics))
        },
        csv: || uncertainty::csv(&mean, statistics, to.csv.labels()),
        picture: to.picture.faded_heatmap(
            &mean,
            statistics.map(|found| (found.low.clone(), found.high.clone())),
            format!("edges, {metric}, n = {count}"),
            format!("effect on {metric} ({unit})"),
        ),
        text: |out: &mut Stdout| {
            let intervals = if statistics.is_some() { ", 95 % intervals and adjusted p-values" } else { "" };
            writeln!(
                out,
                "{}; estimated effects of edges on the {metric} ({unit}){intervals}:",
                plural(count, "prompt")
            )?;
            for (sender, receiver, score) in scores.largest(top) {
                let (sender, receiver) = (sender.to_string(), receiver.to_string());
                write!(out, "{sender:<8} -> {receiver:<8} {score:+.3}")?;
                if let (Some(found), Some(place)) = (statistics, place_of(&mean, [&sender, &receiver])) {
                    let [low, high, p_value] =
                        [&found.low, &found.high, &found.adjusted_p_value].map(|array| array.values()[place]);
                    write!(out, "  {low:+.3} to {high:+.3}  p = {p_value:.3}")?;
                }
                writeln!(out)?;
            }
            Ok(())
        },
    }
    .report(to.out.as_ref(), to.json)
}

/// Index of the value with these labels on the two axes; `None` if there is no such value.
fn place_of(array: &LabeledArray, labels: [&String; 2]) -> Option<[usize; 2]> {
    let at = |axis: usize| array.axes().get(axis)?.labels.iter().position(|label| label == labels[axis]);
    Some([at(0)?, at(1)?])
}
