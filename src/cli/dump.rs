//! `hooklens dump`.

use std::io::Write;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::any_model::{AnyModel, other_kind};
use super::args::{DumpArgs, ProcessArg};
use super::findings::Findings;
use super::{CliResult, Failure};
use crate::driver::HookedModel;
use crate::dump::{Dump, DumpModel, Prompt, Seen, read_prompts};
use crate::error::Error;
use crate::model::HookedTransformer;
use crate::model::LoadReport;
use crate::numerals::{bytes, grouped};
use crate::processing::Processing;

pub(super) fn run(args: &DumpArgs) -> CliResult {
    let globs = split_globs(&args.hooks);
    if globs.is_empty() {
        return Err(Failure::Usage("--hooks names no point".into()));
    }
    if args.shard.is_some() && args.out.extension().is_some_and(|e| e == "safetensors") {
        return Err(Failure::Usage("--shard writes a folder, which `hooklens merge` makes one with the others".into()));
    }
    if args.resume && args.out.extension().is_some_and(|e| e == "safetensors") {
        return Err(Failure::Usage("--resume continues a folder; a file appears when it is whole".into()));
    }
    let processing = match args.process {
        ProcessArg::None => Processing::none(),
        ProcessArg::Standard => Processing::standard(),
    };
    let options = args.model.options()?.process(processing);
    match AnyModel::load(&args.model, options)? {
        AnyModel::Decoder(model) => {
            let prefix = prefix(args, &model)?;
            let after_prefix = !prefix.is_empty();
            let ids = |text: &str, bos: Option<bool>| model.token_row(text, bos);
            let prepend_bos = if after_prefix { Some(false) } else { args.prepend_bos };
            let mut rows = rows(args, |text| match args.concatenate {
                Some(_) => Ok(model.tokenizer()?.encode(text)?),
                None => ids(text, prepend_bos),
            })?;
            if let Some(len) = args.concatenate {
                let (whole, left) = model.concatenated(&rows, len, prepend_bos)?;
                if left > 0 {
                    eprintln!("note: {left} tokens at the end fill no row of {len} and are left out");
                }
                rows = whole;
            }
            written(args, globs, &model, prefix, rows)
        }
        AnyModel::Encoder(model) => {
            let given = [
                ("--prefix", args.prefix.is_some() || args.prefix_tokens.is_some()),
                ("--concatenate", args.concatenate.is_some()),
                ("--prepend-bos", args.prepend_bos.is_some()),
            ];
            if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
                let told = format!("{option} is for decoders; an encoder's tokenizer frames each prompt itself");
                return Err(Failure::Usage(told));
            }
            let rows = rows(args, |text| Ok(model.to_tokens(text)?.tokens.real(0)))?;
            written(args, globs, &model, Vec::new(), rows)
        }
        AnyModel::EncoderDecoder(_) => Err(other_kind("dump", "T5", "an encoder with a decoder")),
    }
}

/// Dumps these rows and says what was found.
fn written<M: DumpModel>(
    args: &DumpArgs,
    globs: Vec<&str>,
    model: &M,
    prefix: Vec<u32>,
    rows: Vec<Vec<u32>>,
) -> CliResult {
    let rows = truncated(args, rows);
    let dump = Dump::new(globs)
        .positions(args.positions.clone())
        .dtype(args.dtype)
        .logits(args.logits.into())
        .padding_side(args.padding_side)
        .batch_size(args.batch_size as usize)
        .prefix(prefix)
        .resume(args.resume)
        .share_prefix(!args.no_share_prefix)
        .setting("model", &args.model.model)
        .setting("process", if args.process == ProcessArg::None { "none" } else { "standard" });

    let dump = match &args.model.adapter {
        Some(folder) => dump.setting("adapter", &folder.display().to_string()),
        None => dump,
    };
    let dump = match args.shard {
        Some(part) => dump.part(part),
        None => dump,
    };

    let bar = ProgressBar::new(dump.own_rows(rows.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts {per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut findings = Findings::default();
    let start = Instant::now();
    let report = dump.run_watched(model, &rows, &args.out, &mut |seen| match seen {
        Seen::Resumed(rows) => {
            bar.set_position(rows as u64);
            bar.reset_eta();
        }
        Seen::Batch(tokens, recorded) => {
            findings.look(tokens, recorded);
            bar.inc(tokens.shape()[0] as u64);
        }
    });
    bar.finish_and_clear();
    let report = report?;

    let mut out = std::io::stdout().lock();
    let seconds = start.elapsed().as_secs_f64();
    let place = args.out.display();
    let files = if report.files.len() == 1 { String::new() } else { format!(" in {} shards", report.files.len()) };
    writeln!(
        out,
        "{} prompts, {} tokens -> {place}{files}, {} ({seconds:.1} s)",
        grouped(report.rows),
        grouped(report.tokens),
        bytes(report.bytes)
    )?;
    if report.shared > 0 {
        let share = 100.0 * report.shared as f64 / report.tokens.max(1) as f64;
        writeln!(out, "{} tokens ({share:.0} %) not run: prompts begin alike", grouped(report.shared))?;
    }
    if report.resumed > 0 {
        writeln!(out, "{} shards were there already; their tokens are not counted", report.resumed)?;
    }
    for line in findings.lines() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Says on standard error which tensors of the files nothing was made from.
pub(super) fn unused(report: &LoadReport) {
    const SHOWN: usize = 5;
    if !report.unused.is_empty() {
        let more = if report.unused.len() > SHOWN { ", ..." } else { "" };
        let some = &report.unused[..report.unused.len().min(SHOWN)];
        eprintln!("note: {} tensors of the model's files are not used: {}{more}", report.unused.len(), some.join(", "));
    }
}

/// Commas separate globs, but not within braces.
fn split_globs(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let separator = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(separator).map(str::trim).filter(|glob| !glob.is_empty()).collect()
}

fn prefix(args: &DumpArgs, model: &HookedTransformer) -> Result<Vec<u32>, Failure> {
    match (&args.prefix, &args.prefix_tokens) {
        (Some(text), _) => Ok(model.token_row(text, args.prepend_bos)?),
        (None, Some(rows)) => match &rows.0[..] {
            [row] => Ok(row.clone()),
            _ => Err(Failure::Usage("--prefix-tokens is one row of ids".into())),
        },
        (None, None) => Ok(Vec::new()),
    }
}

/// The prompts as token ids.
fn rows(args: &DumpArgs, tokens: impl Fn(&str) -> Result<Vec<u32>, Error>) -> Result<Vec<Vec<u32>>, Failure> {
    let prompts = match (&args.tokens, &args.prompts) {
        (Some(rows), _) => rows.0.iter().cloned().map(Prompt::Tokens).collect(),
        (None, Some(path)) => read_prompts(path)?,
        (None, None) => args.prompt.iter().cloned().map(Prompt::Text).collect(),
    };
    let ids = |prompt| match prompt {
        Prompt::Tokens(ids) => Ok(ids),
        Prompt::Text(text) => tokens(&text),
    };
    Ok(prompts.into_iter().map(ids).collect::<Result<Vec<_>, Error>>()?)
}

/// The rows, cut to as many tokens as they may have.
fn truncated(args: &DumpArgs, mut rows: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    if let Some(most) = args.truncate.map(|most| most as usize).filter(|_| args.concatenate.is_none()) {
        let longer = rows.iter().filter(|row| row.len() > most).count();
        rows.iter_mut().for_each(|row| row.truncate(most));
        if longer > 0 {
            eprintln!("note: {longer} of {} prompts cut to {most} tokens", rows.len());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    #[test]
    fn commas_in_braces_do_not_split() {
        assert_eq!(super::split_globs("a.{q,k}, b,"), ["a.{q,k}", "b"]);
    }
}
