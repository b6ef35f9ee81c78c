//! `hooklens features find`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use hooklens_hooks::{Positions, ResolvePositions};
use serde_json::json;

use super::one::{LayerArg, tell};
use crate::args::{DtypeArg, ModelArg, ProcessArg};
use crate::given::row_of;
use crate::json_result::{ModelId, print_result};
use crate::terminal::stdout;
use crate::{CliResult, Failure, any_model};
use hooklens_data::corpus::read_prompts;
use hooklens_features::{
    Dictionary, FoundLatent, Labels, latents_by_activation, latents_by_attribution, latents_by_difference,
    promoted_tokens,
};
use hooklens_model::driver::HookedModel;
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::token_text;

/// Number of promoted tokens listed per latent.
const PROMOTED: usize = 4;

#[derive(Debug, Args)]
pub(super) struct FindArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    #[command(flatten)]
    layer: LayerArg,
    /// The prompt to find latents on
    #[arg(long, value_name = "TEXT", required_unless_present = "more", conflicts_with_all = ["more", "less"])]
    prompt: Option<String>,
    /// A position in the prompt; -1 is the last (default: each latent's most active position)
    #[arg(long, value_name = "POSITION", allow_hyphen_values = true, conflicts_with = "answer")]
    position: Option<isize>,
    /// Rank by attribution to this token's logit after the prompt, instead of by activation
    #[arg(long, value_name = "TEXT", requires = "prompt")]
    answer: Option<String>,
    /// Attribute the difference between the logits of --answer and of this token
    #[arg(long, value_name = "TEXT", requires = "answer")]
    wrong: Option<String>,
    /// Find latents that are more active on the prompts in this file than on those in --less
    #[arg(long, value_name = "FILE", requires = "less")]
    more: Option<PathBuf>,
    /// A file of prompts to compare the --more prompts with
    #[arg(long, value_name = "FILE", requires = "more")]
    less: Option<PathBuf>,
    /// Labels of latents: a .csv of `latent,label`, or a .json object
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// How many latents to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Tokenizes the prompts of a file.
pub(super) fn rows(
    model: &HookedTransformer,
    path: &Path,
    prepend_bos: Option<bool>,
) -> Result<Vec<Vec<u32>>, Failure> {
    let row = |prompt| row_of(prompt, |text| model.prompt_row(text, prepend_bos));
    Ok(read_prompts(path)?.into_iter().map(row).collect::<hooklens_model::error::Result<_>>()?)
}

pub(super) fn run(args: &FindArgs) -> CliResult {
    let [path] = &args.model.dictionary[..] else {
        return Err(Failure::Usage("exactly one --dictionary is required".into()));
    };
    let mut dictionary = args.layer.one(path, &args.model)?;
    if let Some(path) = &args.labels {
        dictionary = dictionary.with_labels(Labels::read(path)?)?;
    }
    let model =
        any_model::plain_decoder("features find", &args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    tell(&dictionary, &model)?;
    let prepend_bos = dictionary.metadata().prepend_bos;
    let (found, prompt) = match (&args.prompt, &args.more, &args.less) {
        (Some(text), _, _) => {
            let prompt = model.prompt_row(text, prepend_bos)?;
            let found = match &args.answer {
                Some(answer) => {
                    let wrong = args.wrong.as_ref().map(|wrong| model.to_single_token(wrong)).transpose()?;
                    latents_by_attribution(&model, &dictionary, &prompt, model.to_single_token(answer)?, wrong)?
                }
                None => {
                    let place = |pos: isize| Positions::At(pos).resolve(prompt.len()).map(|range| range.start);
                    let position = args.position.map(place).transpose()?;
                    latents_by_activation(&model, &dictionary, &prompt, position)?
                }
            };
            (found, prompt)
        }
        (None, Some(more), Some(less)) => {
            let [more, less] = [rows(&model, more, prepend_bos)?, rows(&model, less, prepend_bos)?];
            (latents_by_difference(&model, &dictionary, &more, &less, &[])?, Vec::new())
        }
        _ => return Err(Failure::Usage("--prompt, or --more and --less, is required".into())),
    };
    report(args, &model, &dictionary, &found[..args.top.min(found.len())], &prompt)
}

fn report(
    args: &FindArgs,
    model: &HookedTransformer,
    dictionary: &Dictionary,
    found: &[FoundLatent],
    prompt: &[u32],
) -> CliResult {
    let text = |id: u32| token_text(model.tokenizer().ok(), id);
    let mut listed = Vec::new();
    for one in found {
        let promoted = promoted_tokens(model, dictionary, one.latent, PROMOTED)?;
        listed.push((one, promoted.into_iter().map(|(id, _)| text(id)).collect::<Vec<_>>()));
    }
    if args.json {
        let line = |(one, promoted): &(&FoundLatent, Vec<String>)| {
            json!({
                "latent": one.latent, "score": one.score, "position": one.position,
                "token": one.position.and_then(|pos| prompt.get(pos)).map(|id| text(*id)),
                "label": dictionary.labels().get(one.latent), "promotes": promoted,
            })
        };
        let latents: Vec<_> = listed.iter().map(line).collect();
        let id = ModelId::of(&args.model.model, model)?;
        return print_result(Some(&id), json!({"dictionary": dictionary.name(), "latents": latents}));
    }
    let mut out = stdout();
    if listed.is_empty() && args.top > 0 {
        let what = match (&args.more, &args.answer) {
            (Some(_), _) => "no latent differs",
            (_, Some(_)) => "no latent has an effect",
            _ => "no latent is active",
        };
        writeln!(out, "{what}")?;
    }
    for (one, promoted) in listed {
        let place = match one.position.and_then(|pos| Some((pos, *prompt.get(pos)?))) {
            Some((pos, id)) => format!("at {pos:<3} {:<12}", format!("{:?}", text(id))),
            None => String::new(),
        };
        let promotes = promoted.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ");
        let label = dictionary.labels().get(one.latent).unwrap_or_default();
        let line = format!("{:>7}  {:+9.3}  {place} promotes {promotes}  {label}", one.latent, one.score);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
