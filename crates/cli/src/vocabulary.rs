//! `hooklens vocabulary`.

use std::io::Write;

use clap::Args;
use hooklens_hooks::nearest;
use serde_json::json;

use super::CliResult;
use super::args::NameArg;
use super::json_result::{ModelId, print_result};
use super::terminal::stdout;
use hooklens_loading::loading::inspect;
use hooklens_model::error::InputError;
use hooklens_model::tokens::token_text;
use hooklens_plot::token_text::visible;

#[derive(Debug, Args)]
pub(super) struct VocabularyArgs {
    #[command(flatten)]
    model: NameArg,
    /// List only tokens whose text contains this
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VocabularyArgs) -> CliResult {
    let tokenizer = inspect(&args.model.model)?.tokenizer.ok_or(InputError::NoTokenizer)?;
    let tokens = tokenizer.vocabulary();
    let texts = tokens.iter().map(|(id, token)| (*id, token, token_text(Some(&tokenizer), *id)));
    let wanted = args.contains.as_deref().unwrap_or_default();
    let listed: Vec<_> = texts.filter(|(_, _, text)| text.contains(wanted)).collect();
    if listed.is_empty() {
        let texts: Vec<String> = tokens.iter().map(|(id, _)| token_text(Some(&tokenizer), *id)).collect();
        let near = nearest(wanted, texts.iter().map(String::as_str));
        let near: Vec<String> = near.iter().map(|text| format!("{text:?}")).collect();
        let near = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
        return Err(format!("none of the {} tokens contains {wanted:?}{near}", tokens.len()).into());
    }
    let mut out = stdout();
    if args.json {
        let entry = |(id, token, text): &(u32, &String, String)| json!({"id": id, "token": token, "text": text});
        let listed: Vec<_> = listed.iter().map(entry).collect();
        let body = json!({"size": tokens.len(), "tokens": listed});
        return print_result(Some(&ModelId::named(&args.model.model)), body);
    }
    let width = tokens.last().map_or(0, |(id, _)| id.to_string().len());
    for (id, _, text) in &listed {
        writeln!(out, "{id:>width$}  {}", visible(text))?;
    }
    Ok(())
}
