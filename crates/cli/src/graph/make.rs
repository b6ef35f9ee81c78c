//! `hooklens graph`: the graph of one prompt, the mean over several prompts, or the difference of two.

use std::path::PathBuf;

use clap::Args;
use hooklens_hooks::DType;

use super::change;
use super::tell::{self, GraphReport};
use crate::any_model::note_excluded_tokens;
use crate::args::{DtypeArg, ModelArg, ProcessArg, TokenRows, token_rows};
use crate::feature_edit::{FeatureEditArg, feature_edit};
use crate::json_result::{ModelId, print_result};
use crate::out::{Names, prepare, said};
use crate::pair_file::{Line, PairFile, PairToken, ioi_lines};
use crate::pairs;
use crate::progress::progress;
use crate::replacement::{NamedDictionary, replacement};
use crate::terminal::note;
use crate::{CliResult, Failure, any_model, direction_file, size};
use hooklens_features::graph::{
    AttributionGraph, GraphDetails, GraphFile, GraphFileParts, GraphOptions, GraphTarget, NodeKind, Replacement,
    difference_of_ids, feature_tokens, groups, weighted_target,
};
use hooklens_io::numerals;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result as LibResult;
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::token_text;

/// Graphs estimated to take longer than this many seconds are announced with a note.
const LONG: f64 = 3.0;
/// Maximum deviation of an accepted graph: relative to the row's sum for rows, and to the largest edge of the edited
/// source for interventions. In `f32`, rounding stays well below this; with weights rounded to 16 bits it does not.
const PROVEN: f32 = 1e-4;
/// Environment variable of reproducible builds that sets the date of outputs.
const SOURCE_DATE: &str = "SOURCE_DATE_EPOCH";

#[derive(Debug, Args)]
pub(crate) struct MakeArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    /// The prompt; the graph explains the token that follows it
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["tokens", "ioi", "pairs"])]
    prompt: Option<String>,
    /// The prompt as token ids: 1,2,3
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "prompt")]
    tokens: Option<TokenRows>,
    /// Subtract the graph of this prompt, which must have the same number of tokens
    #[arg(long, value_name = "TEXT", requires = "prompt")]
    against: Option<String>,
    /// Average the graphs of N prompts from the grammar that embedded:ioi was trained on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000), conflicts_with_all = ["prompt", "tokens", "answer", "wrong", "pairs"])]
    ioi: Option<u32>,
    /// Average the graphs of prompts of equal token count: a file with one {"clean": ..., "answer": ..., "wrong": ...}
    /// per line
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["prompt", "tokens", "answer", "wrong"])]
    pairs: Option<PairFile>,
    /// Instead of a dictionary, use the N neurons of each MLP with the largest outputs at each position
    #[arg(long, value_name = "N", conflicts_with = "dictionary")]
    neurons: Option<usize>,
    /// Explain this token's logit (default: the logits of the most likely tokens); may be given several times
    #[arg(long, value_name = "TEXT")]
    answer: Vec<String>,
    /// Explain the logit of the token with this id; separate several ids with commas
    #[arg(long, value_name = "ID,...", value_delimiter = ',', conflicts_with_all = ["answer", "ioi", "pairs"])]
    answer_token: Vec<u32>,
    /// Subtract this token's logit from the logit of --answer
    #[arg(long, value_name = "TEXT", requires = "answer")]
    wrong: Vec<String>,
    /// Subtract the logit of the token with this id from the logit of --answer-token
    #[arg(long, value_name = "ID,...", value_delimiter = ',', requires = "answer_token")]
    wrong_token: Vec<u32>,
    /// Explain the final residual stream at the last token along these directions, as the unembedding reads it:
    /// vectors, or matrices with one direction per row, from a .safetensors, .npz or .pt file, or a .json array
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ioi", "pairs"])]
    direction: Option<PathBuf>,
    /// Explain at most N of the most likely tokens, stopping at --likely-share of the probability
    #[arg(long, value_name = "N", default_value_t = 10)]
    likely: usize,
    /// Total probability of the tokens to explain
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = share, allow_negative_numbers = true)]
    likely_share: f64,
    /// Maximum number of features in the graph; those with the largest influence are kept
    #[arg(long, value_name = "N", default_value_t = 7500)]
    max_nodes: usize,
    /// Save computed effects in this folder, and resume from those that an interrupted run left there
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["against", "ioi", "pairs"])]
    resume: Option<PathBuf>,
    /// Memory for effects, e.g. 2GB; the rest goes to a temporary file
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1GiB")]
    memory: u64,
    /// Number of leading positions without features (default: 1 if the prompt starts with the beginning-of-sequence
    /// token and --all-tokens is not given, else 0)
    #[arg(long, value_name = "N")]
    leave_out: Option<usize>,
    /// Keep the nodes that make up this fraction of the total influence
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share, allow_negative_numbers = true)]
    node_share: f64,
    /// Keep the edges that make up this fraction of the total influence
    #[arg(long, value_name = "SHARE", default_value_t = 0.98, value_parser = share, allow_negative_numbers = true)]
    edge_share: f64,
    /// Group features whose effects have at least this cosine similarity
    #[arg(long, value_name = "COSINE", value_parser = share)]
    group: Option<f64>,
    /// Verify the graph: change N features (and tokens, if there are fewer features) one at a time, and compare the
    /// effects with the graph's edges
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["against", "ioi", "pairs"])]
    check: Option<u32>,
    /// Show which attention heads carried each printed effect
    #[arg(long, conflicts_with_all = ["against", "ioi", "pairs"])]
    heads: bool,
    /// Decompose a head's attention score from a position to an earlier one, such as L3H0:14:2, into pairs of
    /// query-side and key-side sources
    #[arg(long, value_name = "HEAD:FROM:TO", value_parser = change::looks, conflicts_with_all = ["against", "ioi", "pairs"])]
    looks: Option<change::ScoreQuery>,
    /// Change a feature without freezing anything, and show how the output changes: 3:14:12=0 (layer 3, position 14,
    /// latent 12); x2 doubles its activation, 14+ also changes all later positions; may be given several times
    #[arg(long, value_name = "LAYER:POS:LATENT=VALUE", value_parser = feature_edit, conflicts_with_all = ["against", "ioi", "pairs"])]
    set: Vec<FeatureEditArg>,
    /// Generate N tokens without and with the changes
    #[arg(long, value_name = "N", requires = "set")]
    generate: Option<usize>,
    /// How many effects and paths to print
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the pruned graph: a self-contained .html page, or .json in Neuronpedia's schema; `hooklens graph view
    /// FILE.json` makes the page of a .json file
    #[arg(long, value_name = "FILE.html|FILE.json")]
    out: Option<PathBuf>,
}

impl MakeArgs {
    fn answers(&self) -> Vec<PairToken> {
        pairs::tokens(&self.answer, &self.answer_token)
    }

    fn wrongs(&self) -> Vec<PairToken> {
        pairs::tokens(&self.wrong, &self.wrong_token)
    }
}

pub(super) fn run(args: &MakeArgs) -> CliResult {
    if let Some(out) = &args.out
        && !matches!(out.extension().and_then(|ending| ending.to_str()), Some("json" | "html" | "htm"))
    {
        return Err(Failure::Usage(format!("--out: `{}` must end in .html or .json", out.display())));
    }
    prepare(
        args.out.as_deref(),
        Names::File,
        args.model
            .inputs()
            .into_iter()
            .chain(args.pairs.as_ref().map(|file| file.path().into()))
            .chain(args.direction.clone()),
    )?;
    let date = date()?;
    let (replacement, dictionaries) = replacement(&args.model, args.neurons)?;
    let model = any_model::plain_decoder("graph", &args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    // The first dictionary decides whether prompts start with a BOS token.
    let prepend_bos = dictionaries.first().and_then(|one| one.first.metadata().prepend_bos);
    let firsts = dictionaries.iter().map(|one| &one.first);
    firsts.flat_map(|first| first.compatibility_warnings(&model, prepend_bos)).for_each(note);
    let (wrongs, answers) = (args.wrongs().len(), args.answers().len());
    if !matches!((wrongs, answers), (0, _) | (1, 1..)) && wrongs != answers {
        return Err(Failure::Usage("expected one --wrong for all answers, or one per --answer".into()));
    }
    let graph = graph(args, &model, &replacement, prepend_bos)?;
    report_left_out(args, &graph, &model, &dictionaries)?;
    let pruned = graph.prune(args.node_share, args.edge_share)?;
    let check = args.check.map(|count| graph.check(&model, &replacement, count as usize)).transpose()?;
    let groups = args.group.map(|cosine| groups(&graph, &pruned, cosine)).transpose()?.unwrap_or_default();
    let unit = if args.neurons.is_some() { "neuron" } else { "latent" };
    let changed = change::changed(&graph, &model, &replacement, &args.set, args.generate, (unit, args.top))?;
    let looks = args.looks.map(|looks| looks.pairs(&graph, &model, &replacement, args.top)).transpose()?;
    let words = feature_tokens(&graph, &model, &pruned.nodes, tell::TOKENS)?;
    let groups: Vec<(String, Vec<usize>)> =
        groups.into_iter().enumerate().map(|(number, own)| (tell::group_name(number, &own, &words), own)).collect();
    let mut report = GraphReport {
        graph: &graph,
        pruned: &pruned,
        words: &words,
        groups: &groups,
        check,
        heads: None,
        changed,
        looks,
        unit,
        has_directions: args.direction.is_some(),
        top: args.top,
    };
    if args.heads {
        report.split_by_head(&model, &replacement)?;
    }
    if let Some(out) = &args.out {
        let slug = out.file_stem().map(|stem| stem.to_string_lossy().to_string()).unwrap_or_default();
        let file = GraphFile::new(&graph, &pruned)?
            .named(slug, &*args.model.model)
            .pruned_at(args.node_share, args.edge_share)
            .with_tokens(&graph, &words)
            .with_groups(&graph, groups.clone())
            .with_pinned(&graph, report.on_paths()?);
        let file = date.into_iter().fold(file, GraphFileParts::dated);
        file.save(out)?;
    }
    if args.json {
        print_result(Some(&ModelId::of(&args.model.model, &model)?), report.json()?)?;
    } else {
        report.text()?;
        args.out.iter().try_for_each(|out| said(out))?;
    }
    let failed = |what: &str, by: f32| Failure::Failed(format!("{what}: the largest deviation is {by:.1e}").into());
    // 16-bit values are not exact enough for these sums.
    let is_exact = !matches!(model.dtype(), DType::F16 | DType::BF16);
    if graph.deviation() > PROVEN && model.dtype() == DType::F32 {
        return Err(failed("the graph's contributions do not sum to the model's values", graph.deviation()));
    }
    match check {
        Some(check) if check.deviation > PROVEN && is_exact => Err(failed(
            "the measured effects of interventions differ from those predicted by the edges",
            check.deviation,
        )),
        _ => Ok(()),
    }
}

/// Prints notes on positions where the graph has no features.
fn report_left_out(
    args: &MakeArgs,
    graph: &AttributionGraph,
    model: &HookedTransformer,
    dictionaries: &[NamedDictionary],
) -> CliResult {
    let each = dictionaries.iter().map(|one| -> LibResult<(String, Vec<u32>)> {
        let ids = one.first.metadata().exclude_special_tokens.ids(model)?;
        Ok((one.name.clone(), ids))
    });
    let each = each.collect::<LibResult<Vec<_>>>()?;
    note_excluded_tokens(&each, model);
    // Whether every dictionary excludes this token.
    let is_excluded = |id: &u32| !each.is_empty() && each.iter().all(|(_, ids)| ids.contains(id));
    let at = |set: &FeatureEditArg| set.one_position().and_then(|pos| graph.tokens().get(pos)).copied();
    for (set, id) in args.set.iter().filter_map(|set| Some((set, at(set).filter(is_excluded)?))) {
        let text = token_text(model.tokenizer().ok(), id);
        note(format!("--set {set} has no effect: the dictionary is not applied at {text:?}"));
    }
    let by_default = args.leave_out.is_none() && graph.left_out() > 0;
    if let Some(id) = graph.tokens().first().filter(|id| by_default && !is_excluded(id)) {
        let text = token_text(model.tokenizer().ok(), *id);
        note(format!(
            "position 0 has no features, because {text:?} begins every prompt; pass --leave-out 0 to compute them"
        ));
    }
    Ok(())
}

fn graph(
    args: &MakeArgs,
    model: &HookedTransformer,
    replacement: &Replacement,
    prepend_bos: Option<bool>,
) -> Result<AttributionGraph, Failure> {
    let base = GraphOptions::new().likely(args.likely, args.likely_share).max_nodes(args.max_nodes);
    let base = base.memory(usize::try_from(args.memory).unwrap_or(usize::MAX));
    // With `--all-tokens`, the beginning-of-sequence token gets features, too.
    let leave_out = args.leave_out.or(args.model.all_tokens.then_some(0));
    let base = leave_out.into_iter().fold(base, GraphOptions::exclude_positions);
    let base = args.resume.iter().fold(base, GraphOptions::resumable);
    let id = |token: &PairToken| match token {
        PairToken::Text(text) => model.to_single_token(text),
        PairToken::Id(id) => Ok(*id),
    };
    let target = |answer: &PairToken, wrong: Option<&PairToken>| -> LibResult<GraphTarget> {
        Ok(match wrong {
            Some(wrong) => difference_of_ids(model, id(answer)?, id(wrong)?),
            None => GraphTarget::id(model, id(answer)?),
        })
    };
    let many: Option<Vec<Line>> = match (args.ioi, &args.pairs) {
        (Some(count), _) => Some(ioi_lines(count)?),
        (_, Some(file)) => Some(file.lines()?),
        _ => None,
    };
    if let Some(lines) = many {
        return Ok(AttributionGraph::mean(lines.into_iter().map(|line| {
            let row = line.clean.row(|text| model.prompt_row(text, prepend_bos))?;
            let options = base.clone().target(target(&line.answer, line.wrong.as_ref())?);
            one(model, row, replacement, &options)
        }))?);
    }
    let mut options = base.clone();
    let (answers, wrongs) = (args.answers(), args.wrongs());
    let mut taken: Vec<(u32, Option<u32>)> = Vec::new();
    for (place, answer) in answers.iter().enumerate() {
        let wrong = wrongs.get(place).or(wrongs.last());
        let ids = (id(answer)?, wrong.map(&id).transpose()?);
        check_target(&taken, ids, answer, wrong)?;
        taken.push(ids);
        options = options.target(target(answer, wrong)?);
    }
    if let Some(path) = &args.direction {
        let called = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        for (name, direction) in direction_file::read(path, Some(model.config().d_model()))? {
            options = options.target(GraphTarget::direction(if name.is_empty() { &called } else { &name }, direction));
        }
    }
    let row = match (&args.prompt, &args.tokens) {
        (Some(text), _) => model.prompt_row(text, prepend_bos)?,
        (None, Some(rows)) => rows.one("--tokens")?,
        (None, None) => return Err(Failure::Usage("--prompt or --tokens is required".into())),
    };
    let graph = one(model, row, replacement, &options)?;
    let Some(text) = &args.against else { return Ok(graph) };
    // Use the same targets for the other prompt, whatever its most likely tokens are.
    let again = match answers.is_empty() && args.direction.is_none() {
        false => options,
        true => graph.nodes().iter().fold(base, |options, node| match node.kind {
            NodeKind::Logit { token: Some(id), weight } => weighted_target(options, GraphTarget::id(model, id), weight),
            _ => options,
        }),
    };
    let other = one(model, model.prompt_row(text, prepend_bos)?, replacement, &again)?;
    Ok(graph.minus(&other)?)
}

/// Rejects a target whose answer and wrong token are the same, so that it is always zero, and a target that was already
/// given, so that it would count twice. Texts that differ in whitespace may encode to the same token.
fn check_target(
    taken: &[(u32, Option<u32>)],
    ids: (u32, Option<u32>),
    answer: &PairToken,
    wrong: Option<&PairToken>,
) -> CliResult {
    if let Some(wrong) = wrong.filter(|_| Some(ids.0) == ids.1) {
        let message = format!("the answer {answer} and the wrong token {wrong} are the same token, {}", ids.0);
        return Err(Failure::Usage(message));
    }
    if taken.contains(&ids) {
        let minus = wrong.map_or(String::new(), |wrong| format!(" minus {wrong}"));
        return Err(Failure::Usage(format!("the target {answer}{minus} is given twice (token {})", ids.0)));
    }
    Ok(())
}

fn one(
    model: &HookedTransformer,
    row: Vec<u32>,
    replacement: &Replacement,
    options: &GraphOptions,
) -> LibResult<AttributionGraph> {
    let bar = progress(0, "{bar:30} {pos}/{len} features {eta}");
    let graph = AttributionGraph::with_progress(model, row, replacement, options, |update| {
        if update.done == 0 && update.damaged > 0 {
            let damaged = numerals::bytes(update.damaged);
            note(format!("the --resume folder has damaged rows of effects: {damaged} have to be recomputed"));
        }
        if update.done == 0 && update.seconds > LONG {
            let memory = numerals::bytes(update.bytes as u64);
            note(format!(
                "{} features: this takes about {:.0} s, and {memory} of memory in addition to the model",
                update.of, update.seconds
            ));
        }
        bar.set_length(update.of as u64);
        bar.set_position(update.done as u64);
    });
    bar.finish_and_clear();
    graph
}

/// Creation time to store in the file, in milliseconds since 1970. `None` by default, so that the same graph yields the
/// same file.
fn date() -> Result<Option<u64>, Failure> {
    let Some(text) = std::env::var_os(SOURCE_DATE) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse::<u64>().ok());
    match seconds.and_then(|seconds| seconds.checked_mul(1000)) {
        Some(milliseconds) => Ok(Some(milliseconds)),
        None => Err(Failure::Usage(format!(
            "{SOURCE_DATE} is `{}`; expected whole seconds since 1970",
            text.to_string_lossy()
        ))),
    }
}

/// Parses a fraction or cosine, from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be from 0 to 1".into()),
    }
}
