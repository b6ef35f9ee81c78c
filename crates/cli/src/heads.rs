//! `hooklens heads`.

use hooklens_analysis::experiments::Experiments;
use std::io::Write;

use clap::{Args, ValueEnum};
use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, stack};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::args::{DtypeArg, ModelArg, ProcessArg, TokenRows, token_rows};
use super::given::{Given, row_of};
use super::json_result::{ModelId, with_header};
use super::out::{CsvArg, Finding, Names, OutFile, check_finite, plural, prepare};
use super::picture_args::PictureArgs;
use super::prompt_files::PromptFiles;
use super::terminal::Stdout;
use super::uncertainty::csv_with;
use super::{CliResult, Failure, load};
use hooklens_analysis::experiments::{HeadDetection, HeadError, HeadPattern, head_scores_by_prompt};
use hooklens_analysis::labeled::{self, LabeledArray, LabeledAxis};
use hooklens_analysis::statistics::Statistics;
use hooklens_model::driver::Input;
use hooklens_model::error::Error;
use hooklens_model::model::{DecoderInput, HookedTransformer};

#[derive(Debug, Args)]
pub(super) struct HeadsArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    /// A prompt; may be given several times (default: repeated random tokens)
    #[arg(long, value_name = "TEXT", num_args = 1.., conflicts_with_all = ["prompts", "tokens"])]
    pub(super) prompt: Vec<String>,
    #[command(flatten)]
    pub(super) files: PromptFiles,
    /// Token ids, separated by commas within a prompt and semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "prompts")]
    pub(super) tokens: Option<TokenRows>,
    /// How scores are computed: `mean`, as printed by `dump` and `attention`, is the mean attention to the target over
    /// the queries that have one; `mul` and `abs` are the measures of TransformerLens's detect_head, over all queries
    #[arg(long, value_enum, default_value = "mean")]
    pub(super) measure: MeasureArg,
    /// Ignore attention to the first token (mul and abs)
    #[arg(long)]
    pub(super) exclude_bos: bool,
    /// Ignore attention of a token to itself (mul and abs)
    #[arg(long)]
    pub(super) exclude_current_token: bool,
    /// Random seed for the random tokens
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// How many heads to print for each pattern
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) top: usize,
    /// Write all scores to a file: .json, .csv, .svg, .png or .html
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<OutFile>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MeasureArg {
    /// Mean attention to the target, over queries that have a target
    Mean,
    /// Fraction of all attention that goes to the target
    Mul,
    /// One minus the mean, over queries, of the absolute difference from the expected pattern
    Abs,
}

pub(super) fn run(args: &HeadsArgs) -> CliResult {
    prepare(
        args.out.as_ref().map(|out| &*out.path),
        Names::File,
        args.model.inputs().into_iter().chain(args.files.files()),
    )?;
    if args.measure == MeasureArg::Mean && (args.exclude_bos || args.exclude_current_token) {
        return Err(Failure::Usage("--exclude-bos and --exclude-current-token require --measure mul or abs".into()));
    }
    let model = load("heads", &args.model, &args.dtype, args.process)?;
    let (rows, texts) = match Given::read(&args.files, args.tokens.as_ref(), &args.prompt)? {
        None => (repeated(&model, args.seed), "random tokens, repeated once".to_string()),
        Some(given) => {
            let rows = given.rows(|prompt| row_of(prompt, |text| model.prompt_row(text, None)))?.rows;
            let count = plural(rows.len(), "prompt");
            (rows, count)
        }
    };
    let count = rows.len();
    let (all, each) = match args.measure {
        MeasureArg::Mean => head_scores_by_prompt(&model, Input::Rows(rows))?,
        MeasureArg::Mul => by_prompt(&model, rows, HeadError::Mul, args)?,
        MeasureArg::Abs => by_prompt(&model, rows, HeadError::Abs, args)?,
    };
    let intervals = if count > 1 { Some(intervals(&each)?) } else { None };
    // Scores of a pattern that has no target in the prompts are not defined.
    if all.values().iter().any(|score| score.is_infinite()) {
        check_finite(&all)?;
    }
    Finding {
        json: || {
            let [_, low, high] = intervals.as_ref().map_or([None; 3], |found| found.each_ref().map(Some));
            let body = json!({"scores": all, "prompts": count, "low": low, "high": high});
            Ok(with_header(Some(&ModelId::of(&args.model.model, &model)?), body))
        },
        csv: || {
            let [error, low, high] = intervals.as_ref().map_or([None; 3], |found| found.each_ref().map(Some));
            csv_with(&all, &[("standard_error", error), ("low", low), ("high", high)], args.csv.labels())
        },
        picture: args.picture.heatmap(
            &all,
            format!("{}, {texts}", args.model.model),
            match args.measure {
                MeasureArg::Mean => "mean attention to the target",
                MeasureArg::Mul => "fraction of attention (mul)",
                MeasureArg::Abs => "similarity to the pattern (abs)",
            },
        ),
        text: |to: &mut Stdout| {
            for (place, name) in all.axes()[0].labels.iter().enumerate() {
                let own = all.at("pattern", place as isize)?;
                if own.values().iter().all(|score| score.is_nan()) {
                    writeln!(to, "{name:<16}not defined: no position of the prompts has a target")?;
                    continue;
                }
                let mut places: Vec<_> = own.values().indexed_iter().collect();
                places.sort_by(|(_, a), (_, b)| b.abs().total_cmp(&a.abs()));
                let shown = places.iter().take(args.top).map(|(at, score)| {
                    let [layer, head] = [0, 1].map(|axis| &own.axes()[axis].labels[at[axis]]);
                    let bounds = intervals
                        .as_ref()
                        .map(|[_, low, high]| [low, high].map(|bound| bound.values()[[place, at[0], at[1]]]));
                    match bounds {
                        Some([low, high]) if !low.is_nan() => {
                            format!("L{layer}H{head} {score:.2} ({low:.2} to {high:.2})")
                        }
                        _ => format!("L{layer}H{head} {score:.2}"),
                    }
                });
                writeln!(to, "{name:<16}{}", shown.collect::<Vec<_>>().join("   "))?;
            }
            let heads = all.values().shape()[1] * all.values().shape()[2];
            if args.top < heads {
                writeln!(to, "{} of {heads} heads on {texts}; --top N shows more", args.top)?;
            }
            Ok(())
        },
    }
    .report(args.out.as_ref(), args.json)
}

/// Standard errors of the mean score over prompts, and the lower and upper bounds of its 95 % interval, each `[pattern,
/// layer, head]`. Prompts without a target of a pattern are left out, and the numbers are NaN if fewer than two prompts
/// have one.
fn intervals(each: &LabeledArray) -> Result<[LabeledArray; 3], Failure> {
    let axes = &each.axes()[..3];
    let shape: Vec<usize> = axes.iter().map(|axis| axis.labels.len()).collect();
    let mut found = [(); 3].map(|()| ArrayD::from_elem(IxDyn(&shape), f64::NAN));
    for (number, pattern) in each.values().outer_iter().enumerate() {
        let is_defined = |(prompt, scores): (usize, ArrayViewD<'_, f64>)| {
            (!scores.iter().any(|score| score.is_nan())).then_some(prompt)
        };
        let defined: Vec<usize> = pattern.axis_iter(Axis(2)).enumerate().filter_map(is_defined).collect();
        if defined.len() < 2 {
            continue;
        }
        let own_axes = axes[1..].iter().cloned().chain([LabeledAxis::numbered("prompt", defined.len())]);
        let own = labeled::matching(own_axes, pattern.select(Axis(2), &defined));
        let own = Statistics::new().effects(&own).map_err(Error::from)?;
        for (all, own) in found.iter_mut().zip([own.standard_error, own.low, own.high]) {
            all.index_axis_mut(Axis(0), number).assign(own.values());
        }
    }
    Ok(found.map(|values| labeled::matching(axes.to_vec(), values)))
}

/// The scores of [`detected`]: their mean over all prompts, and the scores for each prompt, with a last axis `prompt`.
fn by_prompt(
    model: &HookedTransformer,
    rows: Vec<Vec<u32>>,
    error: HeadError,
    args: &HeadsArgs,
) -> Result<(LabeledArray, LabeledArray), Failure> {
    let each: Vec<LabeledArray> =
        rows.into_iter().map(|row| detected(model, &Input::Rows(vec![row]), error, args)).collect::<Result<_, _>>()?;
    let views: Vec<_> = each.iter().map(|scores| scores.values().view()).collect();
    let mut axes = each.first().map(|scores| scores.axes().to_vec()).unwrap_or_default();
    axes.push(LabeledAxis::numbered("prompt", each.len()));
    let each = labeled::matching(axes, stack(Axis(3), &views)?);
    Ok((each.mean("prompt")?, each))
}

/// Head scores as TransformerLens's `detect_head` computes them, `[pattern, layer, head]`.
fn detected(
    model: &HookedTransformer,
    input: &Input,
    error: HeadError,
    args: &HeadsArgs,
) -> Result<LabeledArray, Failure> {
    let patterns = [
        ("previous token", HeadPattern::PreviousToken),
        ("duplicate token", HeadPattern::DuplicateToken),
        ("induction", HeadPattern::Induction),
    ];
    let mut scores = Vec::new();
    for (_, pattern) in &patterns {
        let mut detection = HeadDetection::new(pattern.clone()).error(error);
        if args.exclude_bos {
            detection = detection.exclude_bos();
        }
        if args.exclude_current_token {
            detection = detection.exclude_current_token();
        }
        scores.push(model.detect_heads(input.clone(), &detection)?);
    }
    let views: Vec<_> = scores.iter().map(|found| found.values().view()).collect();
    let mut axes = vec![LabeledAxis::new("pattern", patterns.iter().map(|(name, _)| *name))];
    axes.extend(scores[0].axes().iter().cloned());
    Ok(labeled::matching(axes, stack(Axis(0), &views)?))
}

/// Four rows of random tokens, each repeated once, after the beginning-of-sequence token if the model has one.
fn repeated(model: &HookedTransformer, seed: u64) -> Vec<Vec<u32>> {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let config = model.config();
    let bos = model.bos_token();
    let len = (config.n_ctx().saturating_sub(1) / 2).clamp(1, 25);
    let row = |_| {
        let once: Vec<u32> = (0..len).map(|_| rng.random_range(0..config.d_vocab() as u32)).collect();
        bos.into_iter().chain(once.clone()).chain(once).collect()
    };
    (0..4).map(row).collect()
}
