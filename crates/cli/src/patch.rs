//! `hooklens patch`.

use std::io::Write;

use clap::{Args, ValueEnum};
use hooklens_hooks::Axis;
use serde_json::json;

use super::any_model::AnyModel;
use super::args::{DtypeArg, ModelArg, ProcessArg};
use super::json_result::ModelId;
use super::out::{Column, CsvArg, Finding, check_finite, plural, prepare, print_largest};
use super::pairs::{AblateArg, PairArgs, PairModel, Pairs, metric_and_unit};
use super::picture_args::PictureArgs;
use super::progress::progress;
use super::share::{Kind, Part, ShareArgs, setting_name};
use super::share_report::ShareReport;
use super::terminal::{Stdout, note};
use super::uncertainty::{self, with_intervals};
use super::{CliResult, Failure};
use hooklens_analysis::error::PatchError;
use hooklens_analysis::labeled::{CsvText, LabeledArray};
use hooklens_analysis::patching::{Backward, PatchingResult, Sites};
use hooklens_data::dump::DumpModel;
use hooklens_model::error::Error;

#[derive(Debug, Args)]
pub(super) struct PatchArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    /// Points to patch: a name, glob or shorthand
    #[arg(long, value_name = "GLOB", default_value = "blocks.*.hook_resid_pre", add = crate::completions::globs())]
    pub(super) at: String,
    /// Axes along which to patch individually; `none` patches each point as a whole
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pos")]
    pub(super) per: Vec<PerArg>,
    /// Patch activations of the corrupted prompts into the clean runs
    #[arg(long, conflicts_with = "ablate")]
    pub(super) reverse: bool,
    /// Ablate activations in the clean runs instead of patching
    #[arg(long, value_enum)]
    pub(super) ablate: Option<AblateArg>,
    /// Take patches from the prompts of other pairs, chosen at random with this seed, to see which effects do not
    /// depend on the pair
    #[arg(long, value_name = "SEED", conflicts_with_all = ["ablate", "shard"])]
    pub(super) shuffled: Option<u64>,
    /// Estimate effects by attribution patching: two forward passes and one backward pass per prompt
    #[arg(long, value_enum, value_name = "METHOD", num_args = 0..=1, require_equals = true, default_missing_value = "gradient")]
    pub(super) estimate: Option<EstimateArg>,
    /// How many of the largest effects to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "shard")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
    #[command(flatten)]
    pub(super) share: ShareArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PerArg {
    /// No axis: each point is patched as a whole
    None,
    /// Token positions
    Pos,
    /// Heads
    Head,
    /// Query positions (scores and patterns)
    Dest,
    /// Key positions (scores and patterns)
    Src,
    /// Neurons
    Neuron,
}

/// How effects are estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EstimateArg {
    /// Gradients
    Gradient,
    /// The rules of layer-wise relevance propagation (RelP)
    Relp,
    /// Mean magnitude of estimates from one gradient per layer, each of which skips what that layer adds to the
    /// residual stream (GradDrop of AtP*)
    GradDrop,
}

impl EstimateArg {
    fn backward(self) -> Backward {
        match self {
            EstimateArg::Gradient => Backward::Gradient,
            EstimateArg::Relp => Backward::Relp { frozen_patterns: false },
            EstimateArg::GradDrop => Backward::GradDrop,
        }
    }
}

fn axes_of(per: &[PerArg]) -> Vec<Axis> {
    let axis = |per: &PerArg| match per {
        PerArg::None => None,
        PerArg::Pos => Some(Axis::Pos),
        PerArg::Head => Some(Axis::Head),
        PerArg::Dest => Some(Axis::Query),
        PerArg::Src => Some(Axis::Key),
        PerArg::Neuron => Some(Axis::DMlp),
    };
    per.iter().filter_map(axis).collect()
}

pub(super) fn run(args: &PatchArgs) -> CliResult {
    args.share.file()?;
    args.share.shard()?;
    prepare(
        args.share.path(),
        args.share.names(),
        args.model.inputs().into_iter().chain(args.pairs.file().map(Into::into)),
    )?;
    match AnyModel::load(&args.model, args.model.processed(args.dtype.dtype, args.process)?)? {
        AnyModel::Decoder(model) => sweep(args, &model),
        AnyModel::Encoder(model) => sweep(args, &model),
        AnyModel::EncoderDecoder(model) => sweep(args, &model),
    }
}

fn sweep<M: PairModel + DumpModel>(args: &PatchArgs, model: &M) -> CliResult {
    let settings = || -> Result<Vec<(&'static str, String)>, Failure> {
        Ok(vec![
            ("model", args.model.model.clone()),
            ("weights", model.fingerprint_of_weights()?),
            ("dictionary", model.parts()?.join(", ")),
            ("prompts", args.pairs.described()?),
            ("at", args.at.clone()),
            ("per", args.per.iter().map(setting_name).collect::<Vec<_>>().join(",")),
            ("ablate", args.ablate.as_ref().map_or("no".into(), setting_name)),
            ("reverse", args.reverse.to_string()),
            (ESTIMATE, args.estimate.as_ref().map_or("no".into(), setting_name)),
            (PICTURE, args.ablate.is_none().to_string()),
        ])
    };
    if args.share.shard()?.is_none() {
        let pairs = args.pairs.read(model)?;
        let to = ShareReport {
            model: &|| Ok(ModelId::of(&args.model.model, model)?),
            shards: None,
            json: args.json,
            csv: args.csv,
            picture: args.picture,
            out: args.share.file()?,
        };
        let options = ReportOptions {
            at: &args.at,
            metric: &args.pairs.metric_name(),
            estimate: args.estimate.is_some(),
            shuffled: args.shuffled.is_some(),
            shares: args.ablate.is_none() && args.shuffled.is_none(),
            top: args.top,
        };
        return report(&swept(args, model, pairs)?, &options, &to);
    }
    let Some(share) = args.share.share(Kind::Patch, settings()?)?.filter(|share| !share.is_done()) else {
        return Ok(());
    };
    let found =
        args.pairs.read_share(model, &share, args.ablate)?.map(|pairs| swept(args, model, pairs)).transpose()?;
    share.write(found.as_ref())
}

fn swept<M: PairModel>(args: &PatchArgs, model: &M, pairs: Pairs<M::Input>) -> Result<PatchingResult, Failure> {
    let bar = progress(1, "{bar:30} {pos}/{len} patches {per_sec} {eta}");
    let mut patching = pairs.patching(model, args.ablate)?.on_progress(|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    if args.reverse {
        patching = patching.reversed();
    }
    if let Some(seed) = args.shuffled {
        patching = patching.shuffled(seed).map_err(Error::from)?;
    }
    let sites = Sites::new(args.at.as_str()).per(axes_of(&args.per));
    let found = match args.estimate {
        Some(method) => patching
            .backward(method.backward())
            .and_then(|patching| patching.attribution(args.at.as_str()))
            .and_then(|estimates| estimates.sweep(&sites)),
        None => patching.sweep(&sites),
    };
    bar.finish_and_clear();
    let mut found = found.map_err(|error| as_typed(error, &args.per))?;
    if args.shuffled.is_some() {
        // As in an ablation: the run on another pair's prompt has no metric of its own.
        found.source = None;
    }
    Ok(found)
}

/// Names the value of `--per`, not the axis, in an error about an axis that a point lacks.
fn as_typed(error: Error, per: &[PerArg]) -> Failure {
    let Some(PatchError::Axis { point, axis, axes }) = error.downcast_ref() else { return error.into() };
    let value = per.iter().find(|per| axes_of(&[**per]).iter().any(|own| own.name() == *axis));
    let Some(value) = value.map(setting_name) else { return error.into() };
    let points = match &*value {
        "head" => "*attn.hook_z",
        "neuron" => "*mlp.hook_post",
        "dest" | "src" => "*hook_pattern",
        _ => "*hook_resid_pre",
    };
    Failure::Usage(format!("--per {value} does not apply to `{point}`, whose axes are {axes}; try --at '{points}'"))
}

/// Data that the report shows besides the result.
struct ReportOptions<'t> {
    at: &'t str,
    metric: &'t str,
    estimate: bool,
    shuffled: bool,
    /// Whether to plot normalized effects instead of raw ones.
    shares: bool,
    top: usize,
}

/// Keys of the settings in a shard's file that the merged report needs.
const ESTIMATE: &str = "estimate";
const PICTURE: &str = "normalized effects are plotted";

/// Merges the shards of a sweep and reports the result.
pub(super) fn merged(parts: &[Part], to: &ShareReport<'_>) -> CliResult {
    let mut results: Vec<PatchingResult> = Vec::new();
    for part in parts {
        results.extend(part.result()?);
    }
    let Some(first) = parts.first() else { return Ok(()) };
    let is = |name: &str| first.setting(name) == "true";
    let options = ReportOptions {
        at: first.setting("at"),
        metric: first.metric(),
        estimate: first.setting(ESTIMATE) != "no",
        shuffled: false,
        shares: is(PICTURE),
        top: 10,
    };
    report(&PatchingResult::joined(results).map_err(Error::from)?, &options, to)
}

fn report(found: &PatchingResult, options: &ReportOptions<'_>, to: &ShareReport<'_>) -> CliResult {
    let count = found.baseline.len();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let effect = found.effect();
    check_finite(&effect)?;
    let statistics = uncertainty::over(count, |settings| found.statistics(settings))?;
    let normalized = found.normalized();
    if let (Some(_), Err(none)) = (&to.out, &normalized) {
        note(format!("{none}; writing unnormalized effects instead"));
    }
    let normalized = normalized.ok();
    let (metric, unit) = metric_and_unit(options.metric);
    let (picture, value, unit_of_picture) = match normalized.as_ref().filter(|_| options.shares) {
        // Ablations, which have no source, are pictured unnormalized.
        Some(normalized) => {
            let gap = mean(found.source.as_deref().unwrap_or(&found.baseline)) - mean(&found.baseline);
            (normalized, format!("share of the gap in {metric}"), gap)
        }
        None => (&effect, format!("effect on {metric} ({unit})"), 1.0),
    };
    let bounds = statistics.as_ref().map(|found| {
        let (low, high) = (&found.low, &found.high);
        let scaled = |bound: &LabeledArray| bound.map(|value| value / unit_of_picture);
        if unit_of_picture < 0.0 { (scaled(high), scaled(low)) } else { (scaled(low), scaled(high)) }
    });
    let estimated = if options.estimate { "estimated: " } else { "" };
    let shuffled = if options.shuffled { "shuffled pairs: " } else { "" };
    let what = if options.estimate { "estimated effect" } else { "effect" };
    Finding {
        json: || {
            let body = json!({
                "at": options.at, "estimate": options.estimate, "prompts": count, "metric": metric, "unit": unit,
                "baseline": found.baseline, "source": found.source, "axes": effect.axes(), "effect": effect,
                "normalized": normalized, "standard_error": found.standard_error(), "values": found.values,
            });
            to.result(with_intervals(body, statistics.as_ref()))
        },
        csv: || found.csv(to.csv.labels()),
        picture: to.picture.effects(
            picture,
            bounds,
            format!("{estimated}{shuffled}{}, {metric}, n = {count}", options.at),
            value,
        ),
        text: |out: &mut Stdout| {
            let source = found
                .source
                .as_ref()
                .map_or(String::new(), |source| format!(", {:+.3} in the source runs", mean(source)));
            let prompts = plural(count, "prompt");
            writeln!(out, "{shuffled}{prompts}; {metric} {:+.3} unpatched{source} ({unit})", mean(&found.baseline))?;
            let effect_name = format!("{what} ({unit})");
            let mut columns = vec![Column::signed(&effect_name, &effect)];
            columns.extend(normalized.as_ref().map(|share| Column::signed("share of the gap", share)));
            columns.extend(uncertainty::columns(statistics.as_ref()));
            print_largest(out, &columns, options.top)
        },
    }
    .report(to.out.as_ref(), to.json)
}
