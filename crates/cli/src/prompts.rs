//! `hooklens prompts`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};

use super::CliResult;
use super::args::NameArg;
use super::out::{Names, plural, prepare, said, write};
use super::terminal::{note, stdout};
use hooklens_analysis::prompt_sets::{PromptPairs, PromptSet};
use hooklens_io::numerals::grouped;
use hooklens_loading::loading::inspect;
use hooklens_model::error::InputError;
use hooklens_model::tokens::single_token;

#[derive(Debug, Args)]
pub(super) struct PromptsArgs {
    /// The task
    #[arg(value_name = "SET", value_parser = sets())]
    set: PromptSet,
    #[command(flatten)]
    model: NameArg,
    /// Number of pairs, at most 100,000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Random seed; the same seed gives the same pairs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the pairs to a file instead of printing them
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,
}

fn sets() -> impl TypedValueParser<Value = PromptSet> {
    PossibleValuesParser::new(PromptSet::ALL.map(PromptSet::name)).try_map(|name| name.parse::<PromptSet>())
}

pub(super) fn run(args: &PromptsArgs) -> CliResult {
    prepare(args.out.as_deref(), Names::File, [PathBuf::from(&args.model.model)])?;
    let tokenizer = inspect(&args.model.model)?.tokenizer.ok_or(InputError::NoTokenizer)?;
    let found = args.set.template().pairs(&tokenizer, args.count as usize, args.seed)?;
    report(&found);
    let mut text = String::new();
    for pair in &found.pairs {
        let token = |text: &str, id: u32| -> Value {
            if single_token(&tokenizer, text).is_ok_and(|own| own == id) { text.into() } else { id.into() }
        };
        let line = json!({
            "clean": pair.clean, "corrupted": pair.corrupted,
            "answer": token(&pair.answer, pair.answer_id), "wrong": token(&pair.wrong, pair.wrong_id),
        });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    match &args.out {
        None => Ok(stdout().write_all(text.as_bytes())?),
        Some(path) => {
            write(path, text.as_bytes())?;
            said(path)
        }
    }
}

/// Reports words and combinations of words that the tokenizer does not allow.
fn report(found: &PromptPairs) {
    /// Maximum number of words listed.
    const MOST: usize = 8;
    let dropped = found.dropped.len();
    if dropped > 0 {
        let listed: Vec<&str> = found.dropped.iter().take(MOST).map(String::as_str).collect();
        let more = if dropped > MOST { format!(" and {} more", dropped - MOST) } else { String::new() };
        let all = plural(found.words, "word");
        note(format!(
            "not used: {} of {all}, which are not single tokens in the tokenizer: {}{more}",
            grouped(dropped),
            listed.join(", ")
        ));
    }
    if found.skipped > 0 {
        let skipped = plural(found.skipped, "combination");
        note(format!(
            "skipped {skipped} of words for which the prompts differ in length or the answers are not single tokens"
        ));
    }
}
