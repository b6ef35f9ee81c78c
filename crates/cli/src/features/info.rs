//! `hooklens features info`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::json_result::print_result;
use crate::terminal::stdout;
use crate::{CliResult, Failure};
use hooklens_features::{Dictionary, Opened, Transcoders, excluded_json, is_cross_layer, open, summary};
use hooklens_io::numerals::grouped;

#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    /// A dictionary file or folder, a folder with transcoders of all layers, or embedded:NAME
    #[arg(value_name = "DICTIONARY", required_unless_present = "dictionary", conflicts_with = "dictionary", add = crate::completions::dictionary())]
    path: Option<PathBuf>,
    /// Same as the positional argument, for consistency with other commands
    #[arg(long, value_name = "PATH", add = crate::completions::dictionary())]
    dictionary: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &InfoArgs) -> CliResult {
    let Some(path) = args.path.as_ref().or(args.dictionary.as_ref()) else {
        return Err(Failure::Usage("a dictionary is required".into()));
    };
    let described = match open(path)? {
        Opened::Dictionary(one) => of_one(&one),
        Opened::Transcoders(all) => of_all(&all),
    };
    if args.json {
        let object =
            described.into_iter().map(|(name, value)| (name.to_string(), value)).collect::<serde_json::Map<_, _>>();
        return print_result(None, object.into());
    }
    let mut out = stdout();
    for (name, value) in described {
        let shown = match &value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Bool(true) => "yes".into(),
            Value::Bool(false) => "no".into(),
            Value::Number(number) => number.as_u64().map_or(number.to_string(), |count| grouped(count as usize)),
            other => other.to_string(),
        };
        writeln!(out, "{:<18} {shown}", name.replace('_', " "))?;
    }
    Ok(())
}

fn of_one(one: &Dictionary) -> Vec<(&'static str, Value)> {
    let (metadata, summary) = (one.metadata(), summary(one));
    let labels = one.labels().iter().count();
    vec![
        ("format", summary.format.into()),
        ("kind", if summary.transcoder { "transcoder" } else { "sparse autoencoder" }.into()),
        ("architecture", one.architecture().to_string().into()),
        ("latents", one.latents().into()),
        ("d_in", one.d_in().into()),
        ("d_out", summary.d_out.into()),
        ("reads", json!(metadata.reads)),
        ("writes", json!(metadata.writes)),
        ("head", json!(metadata.head)),
        ("normalization", summary.normalization.to_string().into()),
        ("subtracts_b_dec", summary.centers_input.into()),
        ("skip_connection", summary.skip.into()),
        ("model", json!(metadata.model)),
        ("prepend_bos", json!(metadata.prepend_bos)),
        ("exclude_special_tokens", json!(excluded_json(&metadata.exclude_special_tokens))),
        (
            "model_options",
            if metadata.model_options.is_empty() { Value::Null } else { metadata.model_options.clone().into() },
        ),
        ("context_size", json!(metadata.context_size)),
        ("dataset", json!(metadata.dataset)),
        ("neuronpedia", json!(metadata.neuronpedia)),
        ("labels", if labels == 0 { Value::Null } else { labels.into() }),
    ]
}

fn of_all(all: &Transcoders) -> Vec<(&'static str, Value)> {
    let kind = if is_cross_layer(all) { "cross-layer transcoder" } else { "transcoders, one per layer" };
    let Some(first) = all.layers().first() else { return vec![("kind", kind.into())] };
    let summary = summary(first);
    let latents: usize = all.layers().iter().map(Dictionary::latents).sum();
    vec![
        ("format", summary.format.into()),
        ("kind", kind.into()),
        ("layers", all.layers().len().into()),
        ("architecture", first.architecture().to_string().into()),
        ("latents", latents.into()),
        ("latents_a_layer", first.latents().into()),
        ("d_in", first.d_in().into()),
        ("d_out", summary.d_out.into()),
        ("reads", json!(first.metadata().reads)),
        ("writes", json!(first.metadata().writes)),
        ("skip_connection", summary.skip.into()),
        ("model", json!(first.metadata().model)),
        ("exclude_special_tokens", json!(excluded_json(&first.metadata().exclude_special_tokens))),
    ]
}
