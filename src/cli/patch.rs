//! `hooklens patch`.

use std::io::{IsTerminal, Write};

use clap::{Args, ValueEnum};
use hooklens_hooks::Axis;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::CliResult;
use super::any_model::AnyModel;
use super::args::{DtypeArg, ModelArg};
use super::out::{Finding, OutFile, heatmap, print_largest, spare};
use super::pairs::{AblateArg, PairArgs, PairModel};
use super::terminal::{note, stdout};
use crate::patching::{PatchingResult, Sites};

#[derive(Debug, Args)]
pub(super) struct PatchArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    /// Points to patch: a name, glob or shorthand
    #[arg(long, value_name = "GLOB", default_value = "blocks.*.hook_resid_pre")]
    pub(super) at: String,
    /// Axes along which places are patched one by one; none patches each point whole
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pos")]
    pub(super) per: Vec<PerArg>,
    /// Patch what the corrupted prompts make into the clean ones' runs
    #[arg(long, conflicts_with = "ablate")]
    pub(super) reverse: bool,
    /// Ablate in the clean prompts' runs instead of patching
    #[arg(long, value_enum)]
    pub(super) ablate: Option<AblateArg>,
    /// Estimate by gradients (attribution patching): two runs forth and one back for each prompt
    #[arg(long)]
    pub(super) estimate: bool,
    /// How many of the largest effects to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,
    /// Write all effects to a file: .json, .csv, .svg, .png or .html
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<OutFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PerArg {
    /// Nothing: points are patched whole
    None,
    /// Token positions
    Pos,
    /// Heads
    Head,
    /// Positions that look (scores and patterns)
    Dest,
    /// Positions looked at (scores and patterns)
    Src,
    /// Neurons
    Neuron,
}

pub(super) fn axes(per: &[PerArg]) -> Vec<Axis> {
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
    spare(args.out.as_ref().map(|out| &*out.path), args.model.inputs().into_iter().chain(args.pairs.file().cloned()))?;
    match AnyModel::load(&args.model, args.model.options(args.dtype.dtype)?)? {
        AnyModel::Decoder(model) => sweep(args, &model),
        AnyModel::Encoder(model) => sweep(args, &model),
        AnyModel::EncoderDecoder(model) => sweep(args, &model),
    }
}

fn sweep<M: PairModel>(args: &PatchArgs, model: &M) -> CliResult {
    let pairs = args.pairs.read(model)?;
    let count = pairs.count;
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} patches {per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut patching = pairs.patching(model, args.ablate)?.on_progress(|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    if args.reverse {
        patching = patching.reversed();
    }
    let sites = Sites::new(args.at.as_str()).per(axes(&args.per));
    let found = match args.estimate {
        true => patching.attribution(args.at.as_str())?.sweep(&sites)?,
        false => patching.sweep(&sites)?,
    };
    bar.finish_and_clear();
    drop(patching);
    report(&found, count, args)
}

fn report(found: &PatchingResult, count: usize, args: &PatchArgs) -> CliResult {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let what = if args.estimate { "estimated effect" } else { "effect" };
    {
        let mut out = stdout();
        let source =
            found.source().map_or(String::new(), |source| format!(", {:+.3} where patches come from", mean(source)));
        writeln!(out, "{count} prompts; metric {:+.3} unpatched{source}; {what}:", mean(found.baseline()))?;
    }
    let effect = found.effect();
    print_largest(&effect, args.top)?;
    let Some(out) = &args.out else { return Ok(()) };
    let normalized = found.normalized();
    if let Err(none) = &normalized {
        note(format!("{none}; effects are written in their place"));
    }
    let normalized = normalized.ok();
    let picture = normalized.as_ref().filter(|_| args.ablate.is_none()).unwrap_or(&effect);
    let json = json!({
        "model": args.model.model, "at": args.at, "estimate": args.estimate, "prompts": count,
        "baseline": found.baseline(), "source": found.source(), "axes": effect.axes(),
        "effect": effect, "normalized": normalized, "standard_error": found.standard_error(), "values": found.values(),
    });
    let title = format!("{}{}", if args.estimate { "estimated: " } else { "" }, args.at);
    Finding { json, csv: found.to_csv() }.write(out, heatmap(picture, title))
}
