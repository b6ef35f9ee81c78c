//! `hooklens generate`.

use std::io::Write;

use serde_json::json;

use super::any_model::AnyModel;
use super::args::{GenerateArgs, KvArg};
use super::{CliResult, Failure};
use crate::driver::HookedModel;
use crate::generation::{GenerateOptions, Generation, Sampling, Stop};
use crate::model::HookedTransformer;
use crate::tokens::{PaddingSide, Tokens};

pub(super) fn run(args: &GenerateArgs) -> CliResult {
    let model = AnyModel::load(&args.model, args.model.options()?)?;
    let rows = match &args.tokens {
        Some(rows) => rows.0.clone(),
        None => args.prompt.iter().map(|text| model.token_row(text, args.prepend_bos)).collect::<Result<_, _>>()?,
    };
    let input = Tokens::padded(&rows, 0, PaddingSide::Right)?;
    let chance = args.temperature.is_some() || args.top_k.is_some() || args.top_p.is_some() || args.min_p.is_some();
    let sampling = Sampling {
        temperature: args.temperature.unwrap_or(if chance { 1.0 } else { 0.0 }),
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        frequency_penalty: args.frequency_penalty,
        repetition_penalty: args.repetition_penalty,
    };
    let options = GenerateOptions::new()
        .max_new_tokens(args.max_new_tokens)
        .sampling(sampling)
        .seed(args.seed)
        .cache_kind(KvArg::kind(&args.kv, rows.iter().map(Vec::len).max().unwrap_or(0) + args.max_new_tokens))
        .stop_strings(args.stop.clone());
    let (made, before) = match &model {
        AnyModel::Decoder(model) if !args.json && rows.len() == 1 && model.tokenizer().is_ok() => {
            return stream(model, &input, options);
        }
        AnyModel::Decoder(model) => (model.generate_with(&input, options)?, true),
        // What was read is not part of what is written.
        AnyModel::EncoderDecoder(model) => (model.generate_with(&input, options)?, false),
        AnyModel::Encoder(_) => {
            let told = "an encoder fills in masked tokens and writes no text; `hooklens info` lists its heads";
            return Err(Failure::Failed(told.into()));
        }
    };
    if args.json {
        return print_json(&made);
    }
    let mut out = std::io::stdout().lock();
    for row in &made.rows {
        match &row.text {
            Some(text) if !before => writeln!(out, "{text}")?,
            Some(_) => {
                writeln!(out, "{}", model.tokenizer()?.decode_made(&[&row.prompt[..], &row.new].concat(), true)?)?
            }
            None => writeln!(out, "{}", ids(&row.new))?,
        }
    }
    Ok(())
}

fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// One row, its text as it comes.
fn stream(model: &HookedTransformer, input: &Tokens, options: GenerateOptions<'_>) -> CliResult {
    let mut out = std::io::stdout().lock();
    let mut tokens = input.row(0).to_vec();
    let mut shown = 0;
    let mut show = |tokens: &[u32], all: bool| -> CliResult {
        let text = model.tokenizer()?.decode_made(tokens, true)?;
        // A character may be made of several tokens: half of one is not shown.
        let whole = if all { text.as_str() } else { text.trim_end_matches('\u{fffd}') };
        if let Some(new) = whole.get(shown..) {
            write!(out, "{new}")?;
            out.flush()?;
            shown = whole.len();
        }
        Ok(())
    };
    let steps = model.generate_steps(input, options)?;
    show(&tokens, false)?;
    for step in steps {
        tokens.extend(step?.tokens[0]);
        show(&tokens, false)?;
    }
    show(&tokens, true)?;
    writeln!(out)?;
    Ok(())
}

fn print_json(made: &Generation) -> CliResult {
    let rows: Vec<_> = (made.rows.iter())
        .map(|row| {
            let stop = match &row.stop {
                Stop::Length => json!("length"),
                Stop::Token(token) => json!({"token": token}),
                Stop::Text(text) => json!({"text": text}),
            };
            json!({
                "prompt_tokens": row.prompt, "new_tokens": row.new, "text": row.text,
                "log_probs": row.log_probs, "stop": stop,
            })
        })
        .collect();
    writeln!(std::io::stdout().lock(), "{:#}", json!({ "rows": rows }))?;
    Ok(())
}
