//! `hooklens attention`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use clap::{ArgGroup, Args};
use hooklens_hooks::{Positions, Record, ResolvePositions};
use ndarray::{Array2, Axis, Ix3};
use serde_json::{Value, json};

use super::any_model::AnyModel;
use super::args::{DtypeArg, ModelArg, ProcessArg, TokenRows, positions, token_rows};
use super::json_result::with_header;
use super::out::{CsvArg, Finding, Kind, Names, OutFile, prepare};
use super::picture_args::PngArg;
use super::terminal::{Stdout, note};
use super::{CliResult, Failure};
use hooklens_analysis::experiments::{HeadScores, head_scores};
use hooklens_analysis::labeled::CsvText;
use hooklens_model::config::Layers;
use hooklens_model::driver::HookedModel;
use hooklens_model::tokens::{Tokens, token_text};
use hooklens_plot::token_text::visible;
use hooklens_plot::{
    AttentionPatterns, AttentionView, HeadAttention, PatternGrid, PlotError, ShownHeads, check_attention_view,
};

/// Maximum number of values written to a JSON or CSV file.
const MOST_VALUES: usize = 4_000_000;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "tokens"])))]
pub(super) struct AttentionArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    /// A prompt; may be given several times for a page (.html) with a list of prompts
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    pub(super) prompt: Vec<String>,
    /// Token ids, separated by commas within a prompt and semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    pub(super) tokens: Option<TokenRows>,
    /// Layers to show: 0,2..4,-1 (default: all)
    #[arg(long, value_name = "LAYERS", value_delimiter = ',', value_parser = positions, allow_hyphen_values = true, add = crate::completions::layers())]
    pub(super) layers: Vec<Positions>,
    /// Heads to show in each layer: 0,2..4,-1 (default: all)
    #[arg(long, value_name = "HEADS", value_delimiter = ',', value_parser = positions, allow_hyphen_values = true, add = crate::completions::heads())]
    pub(super) heads: Vec<Positions>,
    /// Positions to show, as queries and as keys: A..B
    #[arg(long, value_name = "POSITIONS", value_parser = positions, allow_hyphen_values = true, default_value = "..")]
    pub(super) positions: Positions,
    /// How many heads to print, highest scores first
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) top: usize,
    /// Write the patterns to a file: an interactive page (.html), a picture (.svg, .png) or all values (.json, .csv)
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<OutFile>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) png: PngArg,
}

pub(super) fn run(args: &AttentionArgs) -> CliResult {
    prepare(args.out.as_ref().map(|out| &*out.path), Names::File, args.model.inputs())?;
    let model = AnyModel::load(&args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    let (n_layers, n_heads) = match &model {
        AnyModel::Decoder(model) => (model.config().n_layers(), model.config().n_heads()),
        AnyModel::Encoder(model) => (model.config().n_layers(), model.config().n_heads()),
        AnyModel::EncoderDecoder(model) => (model.encoder_config().n_layers(), model.encoder_config().n_heads()),
    };
    let mut layers = chosen("--layers", &args.layers, n_layers)?;
    if let (true, AnyModel::Decoder(model)) = (args.layers.is_empty(), &model) {
        layers.retain(|layer| model.config().attends(*layer));
    }
    let heads = chosen("--heads", &args.heads, n_heads)?;
    let rows = match &args.tokens {
        Some(rows) => rows.0.clone(),
        None => args.prompt.iter().map(|text| model.prompt_row(text, None)).collect::<Result<_, _>>()?,
    };
    let kind = args.out.as_ref().map(|out| out.kind);
    if rows.len() > 1 && (args.json || kind.is_some_and(|kind| kind != Kind::Page)) {
        let what = if args.json { "--json" } else { "a file other than a page (.html)" };
        return Err(Failure::Usage(format!("{what} takes one prompt, but {} were given", rows.len())));
    }
    let lengths = rows.iter().map(|row| Ok(args.positions.resolve(row.len())?.len()));
    let len = lengths.collect::<Result<Vec<_>, Failure>>()?.into_iter().max().unwrap_or(0);
    let count = layers.len() * heads.len();
    // Fail before the forward pass if the result is too large to show.
    if kind == Some(Kind::Page) {
        check_attention_view(count, len, true)?;
    }
    if (args.json || matches!(kind, Some(Kind::Json | Kind::Csv))) && count * len * len > MOST_VALUES {
        let axes = ["layers", "heads", "positions"].map(String::from).to_vec();
        return Err(PlotError::TooMany { places: count * len * len, most: MOST_VALUES, axes }.into());
    }
    if matches!(model, AnyModel::EncoderDecoder(_)) {
        note("showing the encoder's patterns; the decoder's patterns are available only from the Rust API");
    }
    let mut shown = Vec::new();
    for row in rows {
        let tokens = Tokens::new(vec![row])?;
        let (patterns, by_layer) = match &model {
            AnyModel::Decoder(model) => recorded(model, (&tokens).into(), &tokens, &layers, "blocks")?,
            AnyModel::Encoder(model) => recorded(model, (&tokens).into(), &tokens, &layers, "blocks")?,
            AnyModel::EncoderDecoder(model) => recorded(model, (&tokens).into(), &tokens, &layers, "encoder")?,
        };
        let patterns = patterns.heads(heads.clone())?.positions(args.positions.clone())?;
        let mut scores = BTreeMap::new();
        for (layer, of_layer) in layers.iter().zip(by_layer) {
            scores.extend(of_layer.into_iter().enumerate().map(|(head, score)| ((*layer, head), score)));
        }
        let heads = patterns.heads_shown().iter().map(|head| HeadSummary::of(head, &scores)).collect();
        shown.push((patterns, heads));
    }
    report(&model, &shown, args)
}

fn report(model: &AnyModel, shown: &[(AttentionPatterns, Vec<HeadSummary>)], args: &AttentionArgs) -> CliResult {
    let Some(((first, scores), others)) = shown.split_first() else {
        return Err(Failure::Usage("--prompt or --tokens is required".into()));
    };
    let title = &args.model.model;
    Finding {
        json: || {
            let scores: Vec<_> = scores.iter().map(HeadSummary::json).collect();
            let body = json!({"tokens": first.tokens(), "scores": scores, "patterns": first.to_labeled()});
            Ok(with_header(Some(&model.id(title)?), body))
        },
        csv: || first.to_labeled().csv(args.csv.labels()),
        picture: |path: &Path| match args.out.as_ref().map(|out| out.kind) {
            Some(Kind::Page) => {
                let view = others.iter().try_fold(AttentionView::of(first)?, |view, (other, _)| view.and(other))?;
                Ok(view.title(title).save(path)?)
            }
            _ => {
                let grid = PatternGrid::of(first)?.title(title);
                args.png.save(&grid, path, |path| grid.save(path))
            }
        },
        text: |to: &mut Stdout| {
            for (number, (_, heads)) in shown.iter().enumerate() {
                if shown.len() > 1 {
                    let blank = if number > 0 { "\n" } else { "" };
                    let text = args.prompt.get(number).map_or(String::new(), |text| format!(": {}", visible(text)));
                    writeln!(to, "{blank}prompt {}{text}", number + 1)?;
                }
                print(to, heads, args.top)?;
            }
            Ok(())
        },
    }
    .report(args.out.as_ref(), args.json)
}

/// Records the attention patterns of the given layers in the stack named `stack`, with the head scores of each layer.
fn recorded<M: HookedModel>(
    model: &M,
    input: M::Input,
    tokens: &Tokens,
    layers: &[usize],
    stack: &str,
) -> Result<(AttentionPatterns, Vec<Vec<HeadScores>>), Failure> {
    let points: Vec<String> = layers.iter().map(|layer| format!("{stack}.{layer}.attn.hook_pattern")).collect();
    let cache = model.record(input, Record::new(points.clone()))?;
    let mut scores = Vec::new();
    let mut patterns = Vec::new();
    for (layer, point) in layers.iter().zip(&points) {
        let pattern = cache.activation(point.as_str())?;
        scores.push(head_scores(pattern, tokens)?);
        let whole = pattern.to_ndarray()?.index_axis_move(Axis(0), 0);
        let of_heads = whole.into_dimensionality::<Ix3>().map_err(|e| Failure::Failed(e.into()))?;
        patterns.push((*layer, of_heads));
    }
    let texts = tokens.row(0).iter().map(|id| token_text(model.tokenizer().ok(), *id));
    Ok((AttentionPatterns::new(texts, patterns)?, scores))
}

/// Resolves layer or head lists against `count`, sorted and without duplicates. Returns all indices if no list is
/// given.
fn chosen(what: &str, asked: &[Positions], count: usize) -> Result<Vec<usize>, Failure> {
    if asked.is_empty() {
        return Ok((0..count).collect());
    }
    let mut all = BTreeSet::new();
    for one in asked {
        let lacking = |_| {
            Failure::Failed(
                format!(
                    "{what} {one} is out of range: the model has {count} {}, numbered 0 to {}",
                    &what[2..],
                    count - 1
                )
                .into(),
            )
        };
        all.extend(one.resolve(count).map_err(lacking)?);
    }
    Ok(all.into_iter().collect())
}

/// Scores of one head, and the relative position it attends to most.
#[derive(Debug, Clone)]
struct HeadSummary {
    name: String,
    scores: HeadScores,
    /// Position that gets the most attention on average, and its fraction of the attention.
    mostly: (String, f32),
}

impl HeadSummary {
    fn of(head: &HeadAttention, scores: &BTreeMap<(usize, usize), HeadScores>) -> Self {
        let scores = scores.get(&(head.layer, head.head)).copied().unwrap_or_default();
        Self { name: head.name(), scores, mostly: mostly(&head.values) }
    }

    fn most(&self) -> f32 {
        let HeadScores { previous_token, duplicate_token, induction, .. } = self.scores;
        [previous_token, duplicate_token, induction, self.mostly.1].into_iter().fold(0.0, f32::max)
    }

    fn json(&self) -> Value {
        let HeadScores { previous_token, duplicate_token, induction, .. } = self.scores;
        let (place, share) = &self.mostly;
        json!({
            "head": self.name, "previous_token": previous_token, "duplicate_token": duplicate_token,
            "induction": induction, "mostly": {"place": place, "share": share},
        })
    }
}

/// A score with two digits, or a dash if no query has a target, for example if no token is repeated.
pub(super) fn score_text(score: f32) -> String {
    if score.is_nan() { "-".into() } else { format!("{score:.2}") }
}

/// The position with the highest mean attention: the first token, or a fixed offset before the query.
fn mostly(pattern: &Array2<f32>) -> (String, f32) {
    let len = pattern.nrows();
    let mean = |sum: f32| sum / len.max(1) as f32;
    let mut best = ("first token".to_string(), mean(pattern.column(0).sum()));
    for back in 0..len {
        let share = mean((back..len).map(|query| pattern[[query, query - back]]).sum());
        if share > best.1 {
            best = (if back == 0 { "itself".into() } else { format!("{back} back") }, share);
        }
    }
    best
}

fn print(out: &mut Stdout, found: &[HeadSummary], top: usize) -> CliResult {
    let all = found.len();
    let mut found = found.to_vec();
    if all > top {
        found.sort_by(|a, b| b.most().total_cmp(&a.most()));
        found.truncate(top);
    }
    writeln!(out, "{:<8}previous  duplicate  induction  attends most to", "head")?;
    for one in &found {
        let (HeadScores { previous_token, duplicate_token, induction, .. }, (place, share)) = (one.scores, &one.mostly);
        let [previous, duplicate, induction] = [previous_token, duplicate_token, induction].map(score_text);
        writeln!(out, "{:<8}{previous:>8}{duplicate:>11}{induction:>11}  {place} {share:.2}", one.name)?;
    }
    if found.len() < all {
        writeln!(out, "... {} of {all} heads", found.len())?;
    }
    Ok(())
}
