//! `hooklens lens`.

use hooklens_analysis::activations::Analyze;
use hooklens_analysis::lens::LogitLens;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use hooklens_hooks::{Positions, Record, ResolvePositions};
use serde_json::json;

use super::any_model::AnyModel;
use super::args::{DtypeArg, ModelArg, ProcessArg, TokenRows, positions, token_rows};
use super::json_result::{ModelId, with_header};
use super::out::{CsvArg, Finding, Names, OutFile, prepare};
use super::picture_args::PngArg;
use super::terminal::Stdout;
use super::written::WrittenArg;
use super::{CliResult, Failure};
use hooklens_analysis::activations::Per;
use hooklens_analysis::lens::{LensReading, TunedLens};
use hooklens_analysis::patching::position_labels;
use hooklens_data::dump::DumpModel;
use hooklens_io::csv_text::CsvTable;
use hooklens_model::driver::HookedModel;
use hooklens_model::tokens::single_token;
use hooklens_plot::{LensCells, LensShade, LensTable};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "tokens"])))]
pub(super) struct LensArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    /// The prompt
    #[arg(long, value_name = "TEXT")]
    pub(super) prompt: Option<String>,
    /// The prompt as token ids separated by commas, used as they are
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    pub(super) tokens: Option<TokenRows>,
    #[command(flatten)]
    pub(super) written: WrittenArg,
    /// The token whose rank to show
    #[arg(long, value_name = "TEXT", conflicts_with = "answer_token")]
    pub(super) answer: Option<String>,
    /// The id of the token whose rank to show
    #[arg(long, value_name = "ID")]
    pub(super) answer_token: Option<u32>,
    /// Positions to read: A..B, N, or -1 for the last
    #[arg(long, value_name = "POSITIONS", value_parser = positions, allow_hyphen_values = true, default_value = "..")]
    pub(super) positions: Positions,
    /// Also decode the residual stream before each MLP
    #[arg(long)]
    pub(super) mid: bool,
    /// Tuned-lens translators, as safetensors
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "mid")]
    pub(super) tuned: Option<PathBuf>,
    /// How many tokens to list per stage and position
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) top: usize,
    /// What the colors show: the probability of the displayed token, the entropy, or the KL divergence from the final
    /// layer (default: the answer's probability if there is an answer, else the displayed token's)
    #[arg(long, value_enum)]
    pub(super) shade: Option<ShadeArg>,
    /// Write the table to a file: .json, .csv, .svg, .png or .html
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

/// What the colors of the table show. By default, the answer's probability or else the displayed token's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ShadeArg {
    Probability,
    Entropy,
    Kl,
}

pub(super) fn run(args: &LensArgs) -> CliResult {
    prepare(
        args.out.as_ref().map(|out| &*out.path),
        Names::File,
        args.model.inputs().into_iter().chain(args.tuned.clone()),
    )?;
    let model = AnyModel::load(&args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    if !matches!(model, AnyModel::Decoder(_)) && (args.mid || args.tuned.is_some()) {
        return Err(Failure::Usage("--mid and --tuned require a decoder".into()));
    }
    if !matches!(model, AnyModel::EncoderDecoder(_)) && args.written.is_given() {
        return Err(Failure::Usage("--decoder-prompt and --decoder-tokens require an encoder-decoder".into()));
    }
    let tokens = match (&args.prompt, &args.tokens) {
        (Some(text), _) => model.prompt_row(text, None)?,
        (None, Some(rows)) => rows.one("--tokens")?,
        (None, None) => return Err(Failure::Usage("--prompt or --tokens is required".into())),
    };
    match &model {
        AnyModel::Decoder(model) => {
            let points = if args.mid { "*hook_resid_{pre,mid,post}" } else { "*hook_resid_{pre,post}" };
            let recorded = model.record(&tokens, Record::new(points).positions(args.positions.clone()))?;
            let analysis = model.analyze(&recorded)?;
            let reading = match &args.tuned {
                Some(path) => analysis.tuned_lens(&TunedLens::load(path, &model.device())?)?,
                None => analysis.logit_lens(if args.mid { Per::Sublayer } else { Per::Layer })?,
            };
            report(args, model, &tokens, &reading)
        }
        AnyModel::Encoder(model) => {
            let reading = model.logit_lens(&tokens)?.positions(args.positions.clone())?;
            report(args, model, &tokens, &reading)
        }
        AnyModel::EncoderDecoder(model) => {
            let written = args.written.row(model)?;
            let reading = model.logit_lens((&tokens, &written))?.positions(args.positions.clone())?;
            report(args, model, &written, &reading)
        }
    }
}

/// Prints the lens at the last position, and writes all positions to a file.
fn report<M: DumpModel>(args: &LensArgs, model: &M, tokens: &[u32], reading: &LensReading) -> CliResult {
    let answer = match &args.answer {
        Some(text) => Some(single_token(model.tokenizer()?.target(), text)?),
        None => args.answer_token,
    };
    let d_vocab = reading.logits.dims()[3];
    if let Some(id) = args.answer_token.filter(|id| *id as usize >= d_vocab) {
        let message =
            format!("--answer-token {id} is outside the vocabulary; ids are 0 to {}", d_vocab.saturating_sub(1));
        return Err(Failure::Usage(message));
    }
    let range = args.positions.resolve(tokens.len())?;
    let top = reading.top(args.top.max(1))?;
    let text = |id: u32| {
        let decoded = model.tokenizer().ok().and_then(|tokenizer| tokenizer.decode(&[id], false).ok());
        decoded.unwrap_or_else(|| id.to_string())
    };
    let rank = answer.map(|id| reading.rank(id)).transpose()?;

    let labels = position_labels(model.tokenizer().ok(), &[tokens], tokens.len())[range.clone()].to_vec();
    let shape = [reading.labels.len(), range.len()];
    let places = || (0..shape[0]).flat_map(|stage| (0..shape[1]).map(move |pos| (stage, pos)));
    Finding {
        json: || {
            let entry = |(stage, pos): (usize, usize)| {
                let tokens: Vec<_> = top[stage][0][pos]
                    .iter()
                    .map(|(id, p)| json!({"id": id, "text": text(*id), "probability": p}))
                    .collect();
                let rank = rank.as_ref().map(|rank| rank[[stage, 0, pos]]);
                json!({"stage": reading.labels[stage], "pos": labels[pos], "top": tokens, "answer_rank": rank})
            };
            let places: Vec<_> = places().map(entry).collect();
            let body = json!({"prompt": args.prompt, "tokens": tokens, "places": places});
            Ok(with_header(Some(&ModelId::of(&args.model.model, model)?), body))
        },
        csv: || {
            let mut table =
                CsvTable::new(["stage", "pos", "place", "token", "probability", "answer_rank"], args.csv.labels());
            for (stage, pos) in places() {
                for (place, (id, p)) in top[stage][0][pos].iter().enumerate() {
                    table.labels([reading.labels[stage].as_str(), &labels[pos]]);
                    table.values([place.to_string()]);
                    table.labels([text(*id).as_str()]);
                    let rank = rank.as_ref().map_or(String::new(), |rank| rank[[stage, 0, pos]].to_string());
                    table.values([p.to_string(), rank]);
                    table.end_row();
                }
            }
            table.finish()
        },
        picture: |path: &Path| {
            let shade = match (args.shade, answer) {
                (Some(ShadeArg::Entropy), _) => LensShade::Entropy,
                (Some(ShadeArg::Kl), _) => LensShade::KlToFinal,
                (None, Some(answer)) => LensShade::ProbabilityOf(answer),
                _ => LensShade::Probability,
            };
            let table = LensTable::of(model, reading, &tokens[range.clone()], 0, shade)?;
            let name = if args.tuned.is_some() { "tuned lens" } else { "logit lens" };
            let table = table.first(range.start).title(format!("{name}, {}", args.model.model));
            args.png.save(&table, path, |path| table.save(path))
        },
        text: |to: &mut Stdout| {
            let last = range.len() - 1;
            if range.len() > 1 && args.positions != Positions::All {
                writeln!(to, "the last of {} positions (--out and --json have all)", range.len())?;
            }
            let of = if rank.is_some() {
                format!(" (rank 0 of {d_vocab} tokens is the most likely)")
            } else {
                String::new()
            };
            writeln!(to, "after {:?}{of}:", text(tokens[range.end - 1]))?;
            for (stage, label) in reading.labels.iter().enumerate() {
                let said: Vec<String> =
                    top[stage][0][last].iter().map(|(id, p)| format!("{:?} {:.1} %", text(*id), p * 100.0)).collect();
                let rank = rank.as_ref().map_or(String::new(), |rank| format!("rank {:<6}", rank[[stage, 0, last]]));
                writeln!(to, "{label:>10}  {rank}{}", said.join("  "))?;
            }
            Ok(())
        },
    }
    .report(args.out.as_ref(), args.json)
}
