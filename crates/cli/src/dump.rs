//! `hooklens dump`.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args, ValueEnum};
use hooklens_hooks::{DType, Positions};
use indicatif::HumanDuration;
use serde_json::{Map, Value, json};

use super::any_model::{AnyModel, past_context};
use super::args::{ModelArg, ProcessArg, TokenRows, positions, token_rows};
use super::findings::Findings;
use super::given::{Given, GivenRows, row_of, to_join, unless_stopped};
use super::json_result::{ModelId, print_result};
use super::out::{Names, plural, prepare};
use super::progress::progress;
use super::prompt_files::PromptFiles;
use super::shard_arg::{ShardArg, folder_of};
use super::terminal::{note, stdout};
use super::tokenization::tokenization;
use super::written::WrittenArg;
use super::{CliResult, Failure};
use super::{signals, size};
use hooklens_data::corpus::{Corpus, CorpusRows, Prompt, RowSource};
use hooklens_data::dump::{Dump, DumpJob, DumpModel, DumpReport, Seen, SeenInStream, Shard, SplitByShard, is_whole};
use hooklens_io::numerals::{bytes, grouped};
use hooklens_io::object_stores::is_url;
use hooklens_loading::loading::ComputeType;
use hooklens_model::device::in_main_memory;
use hooklens_model::driver::Logits;
use hooklens_model::encoder_decoder::{HookedEncoderDecoder, decoder_tokens};
use hooklens_model::error::{Error, InputError, Result as LibResult, error_chain};
use hooklens_model::model::{DecoderInput, HookedTransformer, concatenated_part};
use hooklens_model::tokens::{PaddingSide, Tokens};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompts", "tokens"])))]
pub(super) struct DumpArgs {
    #[command(flatten)]
    model: ModelArg,
    /// A prompt; may be given several times. For a prompt that starts with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    prompt: Vec<String>,
    #[command(flatten)]
    files: PromptFiles,
    /// Token ids, separated by commas within a prompt and semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    tokens: Option<TokenRows>,
    #[command(flatten)]
    written: WrittenArg,
    /// Dump the decoder of an encoder-decoder, running it on this field of each JSON line of --prompts (a text, or
    /// token ids without the start token); the encoder reads --field
    #[arg(long, value_name = "NAME", requires = "prompts", conflicts_with_all = ["decoder_prompt", "decoder_tokens"])]
    decoder_field: Option<String>,
    /// Points to dump: names, globs and shorthands, separated by commas (default: all except those computed only when
    /// requested by name)
    #[arg(long, value_name = "GLOB,...", num_args = 1.., default_value = "*", add = crate::completions::globs())]
    hooks: Vec<String>,
    /// Which logits to write
    #[arg(long, value_enum, default_value = "none")]
    logits: LogitsArg,
    /// Positions of each prompt to keep: A..B, N, or -1 for its last token
    #[arg(long, value_name = "POSITIONS", value_parser = positions, allow_hyphen_values = true, default_value = "..")]
    positions: Positions,
    /// Element type of the files: f32, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = file_dtype)]
    dtype: DType,
    /// Write Parquet files with one row per token and one column per point, without padding; needs a build with the
    /// feature `arrow`
    #[arg(long)]
    tables: bool,
    /// Element type to store the weights and compute in: f32, bf16, f16 or f64 (default: compute in f32 and keep the
    /// weights as stored); q8, to keep quantized weights as stored and round their inputs to 8 bits, as llama.cpp does;
    /// or bf16-products, to keep bf16 weights as stored and round their inputs to bf16
    #[arg(long, value_name = "TYPE")]
    compute_dtype: Option<ComputeType>,
    #[command(flatten)]
    process: ProcessArg,
    /// Side on which shorter prompts of a batch are padded
    #[arg(long, default_value = "right")]
    padding_side: PaddingSide,
    /// Whether text prompts get a beginning-of-sequence token (default: as the model was trained)
    #[arg(long, value_name = "true|false", num_args = 1)]
    prepend_bos: Option<bool>,
    /// Truncate longer prompts to their first N tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    truncate: Option<u32>,
    /// Join the prompts, separated by end-of-sequence tokens, and dump them in rows of N tokens, as in training; an
    /// incomplete last row is dropped
    #[arg(long, value_name = "N", conflicts_with_all = ["truncate", "tokens"])]
    concatenate: Option<usize>,
    /// Text that precedes every prompt, computed once and not dumped. It is tokenized separately from the prompts, so
    /// start each prompt as a continuation of it; with GPT-2's tokenizer, that means a leading space, as in ' so'
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix_tokens")]
    prefix: Option<String>,
    /// Token ids that precede every prompt, computed once and not dumped
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    prefix_tokens: Option<TokenRows>,
    /// Dump only the I-th of N shards of the prompts, to a subfolder of --out; `hooklens merge` combines them. `auto`
    /// takes the shard from a Slurm job array, from `srun`, or (as auto/N) from a Kubernetes indexed job, and resumes
    /// what an earlier run left there
    #[arg(long, value_name = "I/N|auto[/N]")]
    shard: Option<ShardArg>,
    /// Recompute the common prefix of the prompts in a batch for each prompt
    #[arg(long)]
    no_share_prefix: bool,
    /// Size of each output file when dumping prompts from files to a folder, e.g. 1GiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256MiB")]
    file_size: u64,
    /// What to do with an invalid prompt in a file: end the dump, or leave the prompt out
    #[arg(long, value_enum, default_value = "stop")]
    on_error: OnError,
    /// Number of prompts computed together [default: 8, or 32 for prompts from files on the CPU, where they are divided
    /// further, into batches of about 1,024 tokens]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Write NaN and infinite values, with a note, instead of failing
    #[arg(long)]
    allow_non_finite: bool,
    /// Continue a dump that an earlier run left unfinished
    #[arg(long)]
    resume: bool,
    /// With --resume or --shard auto: compare the lengths of finished files only, not their bytes
    #[arg(long)]
    no_verify: bool,
    /// Write nothing; estimate the size of the files and the time, from a few batches
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Output: a name ending in .safetensors for one file (an existing file is replaced), else a folder; in a build
    /// with the feature `object-stores`, also a folder in an object store: s3://bucket/folder, gs://, az://
    #[arg(long, value_name = "FILE.safetensors|FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnError {
    /// End the dump; finished files are kept
    Stop,
    /// Leave the prompt out, and count it in the manifest
    Skip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogitsArg {
    /// Logits at every position
    All,
    /// Logits at each prompt's last token
    Last,
    /// No logits; the run stops after the last requested point
    None,
}

impl From<LogitsArg> for Logits {
    fn from(arg: LogitsArg) -> Self {
        match arg {
            LogitsArg::All => Logits::All,
            LogitsArg::Last => Logits::Last,
            LogitsArg::None => Logits::None,
        }
    }
}

fn file_dtype(text: &str) -> Result<DType, String> {
    match text.parse() {
        Ok(DType::F64) | Err(_) => Err("expected f32, f16 or bf16".to_string()),
        Ok(dtype) => Ok(dtype),
    }
}

pub(super) fn run(args: &DumpArgs) -> CliResult {
    checked(args).map_err(|failure| match failure {
        Failure::Failed(error) => match context_exceeded(&*error) {
            Some(n_ctx) => {
                let reason = error_chain(&*error);
                let advice = format!("`--truncate {n_ctx}` keeps the first {n_ctx} tokens of each prompt");
                Failure::Failed(format!("{reason}; {advice}").into())
            }
            None => Failure::Failed(error),
        },
        other => other,
    })
}

/// The model's number of positions, if an error says that a prompt exceeds it.
fn context_exceeded(error: &(dyn std::error::Error + 'static)) -> Option<usize> {
    let of_input = |error: &InputError| match error {
        InputError::TooLong { n_ctx, .. } | InputError::TextTooLong { n_ctx, .. } => Some(*n_ctx),
        _ => None,
    };
    let mut next = Some(error);
    while let Some(error) = next {
        // Errors of single prompts have a boxed error as their source.
        let own = error.downcast_ref().or_else(|| error.downcast_ref::<Box<Error>>().map(|own| &**own));
        let input = error.downcast_ref().or_else(|| own.and_then(Error::downcast_ref));
        if let Some(n_ctx) = input.and_then(of_input) {
            return Some(n_ctx);
        }
        next = error.source();
    }
    None
}

fn checked(args: &DumpArgs) -> CliResult {
    let globs: Vec<&str> = args.hooks.iter().flat_map(|globs| split_globs(globs)).collect();
    if globs.is_empty() {
        return Err(Failure::Usage("--hooks must name at least one hook point".into()));
    }
    if args.shard.is_some() && to_file(&args.out) {
        return Err(Failure::Usage(
            "--shard requires a folder for --out; combine the shards with `hooklens merge`".into(),
        ));
    }
    if args.resume && to_file(&args.out) {
        return Err(Failure::Usage(
            "--resume requires a folder for --out: a single file is written only when complete".into(),
        ));
    }
    let ending = args.out.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if OTHER_FILES.iter().any(|other| ending.eq_ignore_ascii_case(other)) && !args.out.is_dir() {
        return Err(Failure::Usage(format!(
            "--out {} is neither a .safetensors file nor the name of a folder: dumps are written as safetensors{}",
            args.out.display(),
            if ending.eq_ignore_ascii_case("parquet") { ", or as a folder of Parquet files with --tables" } else { "" }
        )));
    }
    if to_file(&args.out) && is_url(&args.out) {
        return Err(Failure::Usage("an object store requires a folder, not a single .safetensors file".into()));
    }
    if args.no_verify && !args.resume && !args.shard.is_some_and(ShardArg::resumes) {
        return Err(Failure::Usage("--no-verify requires --resume or --shard auto".into()));
    }
    if !args.dry_run {
        let names = if to_file(&args.out) { Names::File } else { Names::Folder };
        prepare(Some(&args.out), names, args.model.inputs().into_iter().chain(args.files.files()))?;
    }
    let shard = args.shard.map(ShardArg::shard).transpose()?;
    if let Some((arg, shard)) = args.shard.zip(shard) {
        arg.check(shard, &args.out)?;
    }
    // A single file is not written in steps that could be resumed, so a signal ends the process at once.
    if !to_file(&args.out) {
        signals::stop();
    }
    let options = args.model.processed(args.compute_dtype, args.process)?;
    let model = AnyModel::load_for(&args.model, options, args.prepend_bos)?;
    if !matches!(model, AnyModel::EncoderDecoder(_)) && (args.written.is_given() || args.decoder_field.is_some()) {
        return Err(Failure::Usage(
            "--decoder-prompt, --decoder-tokens and --decoder-field require an encoder-decoder".into(),
        ));
    }
    match model {
        AnyModel::Decoder(model) => {
            let prefix = prefix(args, &model)?;
            let after_prefix = !prefix.is_empty();
            let prepend_bos = if after_prefix { Some(false) } else { args.prepend_bos };
            let own = &model;
            let most = args.truncate.map_or(usize::MAX, |most| most as usize);
            let source = |corpus: &Corpus| {
                let rows = match args.concatenate {
                    Some(len) => {
                        let join = move |rows: &[Vec<u32>]| Ok(concatenated_part(own, rows, len, prepend_bos)?.0);
                        CorpusRows::joined(corpus, move |prompt| to_join(own, prompt), join)?
                    }
                    None => CorpusRows::new(corpus, move |prompt| {
                        cut(row_of(prompt, |text| own.token_row_up_to(text, prepend_bos, most))?, most)
                    })?,
                };
                Ok(rows.tokenized_by(tokenization(own, own.prepended(prepend_bos), &cuts(args))?))
            };
            if streamed(args, &globs, (&model, &prefix), shard, source)?.is_some() {
                return Ok(());
            }
            let given = given(args)?;
            let given = match args.concatenate {
                Some(len) => given.rows(|prompt| to_join(&model, prompt))?.concatenated(&model, len, prepend_bos)?,
                None => rows(args, given, |text, most| match most {
                    Some(most) => model.token_row_up_to(text, prepend_bos, most),
                    None => model.prompt_row(text, prepend_bos),
                })?,
            };
            let longest = given.rows.iter().map(Vec::len).max();
            past_context(&model, prefix.len() + longest.unwrap_or(0));
            dumped(args, globs, &model, prefix, given, Vec::new(), shard)
        }
        AnyModel::Encoder(model) => {
            framed(args)?;
            let (own, most) = (&model, args.truncate.map_or(usize::MAX, |most| most as usize));
            let row = |text: &str| Ok(own.to_tokens(text)?.tokens.real(0));
            let source = |corpus: &Corpus| {
                let rows = CorpusRows::new(corpus, move |prompt| cut(row_of(prompt, row)?, most))?;
                Ok(rows.tokenized_by(tokenization(own, Ok(None), &cuts(args))?))
            };
            if streamed(args, &globs, (&model, &[]), shard, source)?.is_some() {
                return Ok(());
            }
            let given = rows(args, given(args)?, |text, _| Ok(model.to_tokens(text)?.tokens.real(0)))?;
            dumped(args, globs, &model, Vec::new(), given, Vec::new(), shard)
        }
        AnyModel::EncoderDecoder(model) => {
            framed(args)?;
            let mut given = rows(args, given(args)?, |text, _| Ok(model.to_tokens(text)?.real(0)))?;
            // For decoder points, the rows to dump are the decoder's tokens; the prompts go to the encoder.
            let read = match decoder_rows(args, &model, given.rows.len())? {
                Some(written) => std::mem::replace(&mut given.rows, written),
                None => Vec::new(),
            };
            dumped(args, globs, &model, Vec::new(), given, read, shard)
        }
    }
}

/// Cuts a row to at most this many tokens.
fn cut(mut row: Vec<u32>, most: usize) -> LibResult<Vec<u32>> {
    row.truncate(most);
    Ok(row)
}

/// Decoder token ids for each prompt of an encoder-decoder.
fn decoder_rows(args: &DumpArgs, model: &HookedEncoderDecoder, count: usize) -> Result<Option<Vec<Vec<u32>>>, Failure> {
    let Some(field) = &args.decoder_field else {
        return Ok(if args.written.is_given() { Some(vec![args.written.row(model)?; count]) } else { None });
    };
    let written = Given::Files(args.files.read_field(field)?).rows(|prompt| match prompt {
        Prompt::Tokens(ids) => Ok([vec![model.decoder_start_token()], ids].concat()),
        Prompt::Text(text) => decoder_tokens(model, Some(&text)),
    })?;
    match written.rows.len() {
        len if len == count => Ok(Some(written.rows)),
        len => Err(Failure::Failed(
            format!("{count} prompts, but {len} values of the field `{field}`; every prompt needs one").into(),
        )),
    }
}

/// Rejects options that only apply to decoders.
fn framed(args: &DumpArgs) -> CliResult {
    let given = [
        ("--prefix", args.prefix.is_some() || args.prefix_tokens.is_some()),
        ("--concatenate", args.concatenate.is_some()),
        ("--prepend-bos", args.prepend_bos.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            let message = format!(
                "{option} requires a decoder: an encoder's tokenizer adds its own special tokens to each prompt"
            );
            Err(Failure::Usage(message))
        }
        None => Ok(()),
    }
}

/// Dumps the rows and prints a summary.
fn dumped<M: DumpModel>(
    args: &DumpArgs,
    globs: Vec<&str>,
    model: &M,
    prefix: Vec<u32>,
    given: GivenRows,
    read: Vec<Vec<u32>>,
    shard: Option<Shard>,
) -> CliResult {
    let path = &folder_for(args, shard)?;
    let dump = dump_of(args, globs, prefix)?;
    if args.dry_run {
        let own = shard.map_or(0..given.rows.len(), |shard| shard.share_of(given.rows.len()));
        let read = if read.is_empty() { read } else { read[own.clone()].to_vec() };
        return estimate(args, &dump.resume(false), model, &given.rows[own], &read);
    }
    let dump = dump.encoder_rows(read);
    let dump = if to_file(path) { dump } else { dump.stop_when(signals::stop()) };
    let dump = match shard {
        Some(shard) => dump.shard(shard),
        None => dump,
    };

    let of = dump.own_rows(given.rows.len());
    let bar = progress(of as u64, "{bar:30} {pos}/{len} prompts {msg} {eta}");
    let mut findings = Findings::default();
    let (start, mut done) = (Instant::now(), 0);
    let report = dump.run_watched(model, &given.rows, path, &mut |seen| match seen {
        Seen::Resumed(rows) => {
            if rows > 0 {
                note(format!("resuming after {} of {of}", plural(rows, "prompt")));
            }
            bar.set_position(rows as u64);
            bar.reset_eta();
        }
        Seen::Batch(tokens, recorded) => {
            findings.look(tokens, recorded);
            done += real_tokens(tokens);
            bar.inc(tokens.shape()[0] as u64);
            bar.set_message(format!("{} tokens/s", grouped((done as f64 / start.elapsed().as_secs_f64()) as usize)));
        }
        _ => {}
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| given.with_place(error))?;

    let seconds = start.elapsed().as_secs_f64();
    let printed = match args.json {
        true => print_result(Some(&ModelId::of(&args.model.model, model)?), json(&report, &findings, seconds, path)),
        false => print(&report, &findings, seconds, path),
    };
    if report.left > 0 {
        let again = if args.shard.is_some_and(ShardArg::resumes) { "the same command" } else { "--resume" };
        return Err(Failure::Stopped(format!("{} left; continue with {again}", plural(report.left, "prompt"))));
    }
    printed
}

/// The file or folder to write, which is a subfolder for a shard.
fn folder_for(args: &DumpArgs, shard: Option<Shard>) -> Result<PathBuf, Failure> {
    let own_folder = shard.map(|shard| folder_of(shard, &args.out));
    let path = own_folder.unwrap_or_else(|| args.out.clone());
    // The shards in the output folder may have been merged already.
    if path != args.out
        && is_whole(&args.out).map_err(Error::from)?.is_some()
        && is_whole(&path).map_err(Error::from)?.is_none()
    {
        let message =
            format!("{} already contains a dump, but not this job's shard; choose another --out", args.out.display());
        return Err(Failure::Failed(message.into()));
    }
    Ok(path)
}

/// Default number of prompts per batch.
const BATCH: usize = 8;
/// Default number of prompts per batch when dumping prompts from files on the CPU. These batches are divided further,
/// into batches of about 1,024 tokens. Smaller batches of short prompts would take longer.
const BATCH_ON_CPU: usize = 32;

impl DumpArgs {
    fn batch_size(&self, default: usize) -> usize {
        self.batch_size.map_or(default, |size| size as usize)
    }
}

/// The dump that the options describe.
fn dump_of(args: &DumpArgs, globs: Vec<&str>, prefix: Vec<u32>) -> Result<Dump, Failure> {
    let dump = Dump::new(globs)
        .positions(args.positions.clone())
        .dtype(args.dtype)
        .logits(args.logits.into())
        .padding_side(args.padding_side)
        .batch_size(args.batch_size(BATCH))
        .prefix(prefix)
        .resume(args.resume || args.shard.is_some_and(ShardArg::resumes))
        .verify(!args.no_verify)
        .share_prefix(!args.no_share_prefix)
        .allow_non_finite(args.allow_non_finite)
        .prompts_from(described(args))
        .setting("model", &args.model.model)
        .setting("process", args.process.name());

    let dump = match &args.model.adapter {
        Some(folder) => dump.setting("adapter", &folder.display().to_string()),
        None => dump,
    };
    #[cfg(feature = "arrow")]
    let dump = if args.tables { dump.tables() } else { dump };
    #[cfg(not(feature = "arrow"))]
    if args.tables {
        return Err(Failure::Usage("--tables requires a build with --features arrow".into()));
    }
    Ok(dump)
}

/// Dumps the prompts of files while they are read, if the files and the points allow it; `None` otherwise.
/// `source` reads and tokenizes the prompts.
fn streamed<'m, M: DumpModel>(
    args: &DumpArgs,
    globs: &[&str],
    (model, prefix): (&'m M, &[u32]),
    shard: Option<Shard>,
    source: impl FnOnce(&Corpus) -> Result<CorpusRows<'m>, Failure>,
) -> Result<Option<()>, Failure> {
    if to_file(&args.out) || args.decoder_field.is_some() {
        return Ok(None);
    }
    let dump = dump_of(args, globs.to_vec(), prefix.to_vec())?;
    if !dump.can_be_packed(model)? {
        return Ok(None);
    }
    let is_cpu = model.devices().iter().all(in_main_memory);
    let batch_size = args.batch_size(if is_cpu { BATCH_ON_CPU } else { BATCH });
    let dump = dump.batch_size(batch_size);
    let Some(corpus) = args.files.in_pieces()? else { return Ok(None) };
    let source = unless_stopped(source(&corpus))?;
    // If the first prompt is invalid, the error is reported later, when that prompt is computed.
    if source.open_all(0..source.pieces(), 0).next().is_none() {
        return Err(args.files.are_empty());
    }
    if args.dry_run {
        // If there are few pieces, such as compressed files, a sample of them is not representative.
        let own = shard.map_or(0..source.pieces(), |shard| shard.share_of(source.pieces()));
        return if own.len() < SPARSE {
            Ok(None)
        } else {
            sampled(args, (&dump, batch_size), model, &source, own).map(Some)
        };
    }
    if let Some(shard) = shard.filter(|shard| source.pieces() < shard.of()) {
        note(format!(
            "the prompt files have {}, so some of the {} shards are empty (a .gz file is one piece, and so is a frame \
             of a .zst file)",
            plural(source.pieces(), "piece"),
            shard.of()
        ));
    }
    let path = folder_for(args, shard)?;
    let dump = dump.stop_when(signals::stop()).file_size(args.file_size).skip_errors(args.on_error == OnError::Skip);
    let dump = shard.into_iter().fold(dump, Dump::shard);
    let bar = progress(1, "{bar:30} {percent} % {msg} {eta}");
    let mut findings = Findings::default();
    let (start, mut done, mut skipped) = (Instant::now(), 0, 0);
    let report = dump.run_corpus(model, &source, &path, &mut |seen| match seen {
        SeenInStream::Dump(Seen::Resumed(rows)) => note(format!("resuming after {}", plural(rows, "prompt"))),
        SeenInStream::Dump(Seen::Batch(tokens, recorded)) => {
            findings.look(tokens, recorded);
            done += real_tokens(tokens);
            bar.set_message(format!("{} tokens/s", grouped((done as f64 / start.elapsed().as_secs_f64()) as usize)));
        }
        SeenInStream::Pieces(read, all) => {
            bar.set_length(all as u64);
            bar.set_position(read as u64);
        }
        SeenInStream::LeftOut(error) => {
            skipped += 1;
            if skipped <= SHOWN {
                note(format!("left out: {}", error_chain(error)));
            }
        }
        _ => {}
    });
    bar.finish_and_clear();
    let report = report?;
    if skipped > 0 {
        note(format!("left out {}", plural(skipped, "prompt")));
    }
    let seconds = start.elapsed().as_secs_f64();
    let printed = match args.json {
        true => print_result(Some(&ModelId::of(&args.model.model, model)?), json(&report, &findings, seconds, &path)),
        false => print(&report, &findings, seconds, &path),
    };
    if report.left > 0 {
        let again = if args.shard.is_some_and(ShardArg::resumes) { "the same command" } else { "--resume" };
        // The pieces of few files, such as compressed ones, say little about how many prompts are left.
        let state = match source.pieces() {
            pieces if pieces < SPARSE => format!("{} dumped so far", plural(report.rows, "prompt")),
            pieces => format!("{:.0} % of the prompts left", 100.0 * report.left as f64 / pieces as f64),
        };
        return Err(Failure::Stopped(format!("{state}; continue with {again}")));
    }
    printed.map(Some)
}

/// Number of places in a corpus from which an estimate takes samples.
const PLACES: usize = 8;
/// Minimum number of pieces of a corpus for sampling.
const SPARSE: usize = 256;

/// Dumps a few batches from all over the corpus to a temporary folder, and prints what the whole dump would take.
fn sampled<M: DumpModel>(
    args: &DumpArgs,
    (dump, size): (&Dump, usize),
    model: &M,
    source: &CorpusRows<'_>,
    pieces: Range<usize>,
) -> CliResult {
    let (mut prompts, mut tokens, mut read) = (0, 0, 0);
    let (mut computed, mut bytes_of_sample, mut seconds) = (0, 0.0, 0.0);
    for number in 0..=PLACES {
        let mut piece = pieces.start + pieces.len() * number.saturating_sub(1) / PLACES;
        let mut rows: Vec<Vec<u32>> = Vec::new();
        // Read whole pieces, because the estimate needs the number of rows per piece.
        while rows.len() < size && piece < pieces.end {
            let own = source.open(piece)?.map(|row| row.tokens);
            let own = own.filter(|tokens| tokens.is_ok() || args.on_error == OnError::Stop);
            rows.extend(own.collect::<Result<Vec<_>, _>>()?);
            (piece, read) = (piece + 1, read + usize::from(number > 0));
        }
        let of_all: usize = rows.iter().map(Vec::len).sum();
        let count = rows.len();
        rows.truncate(size);
        if rows.is_empty() {
            continue;
        }
        let own: usize = rows.iter().map(Vec::len).sum();
        let padded = rows.len() * rows.iter().map(Vec::len).max().unwrap_or(0);
        let folder = tempfile::tempdir()?;
        let begun = Instant::now();
        let report = dump.clone().resume(false).run(model, rows, folder.path().join("sample"))?;
        // The first run also sets up memory and threads, so it is not counted.
        if number > 0 {
            seconds += begun.elapsed().as_secs_f64();
            bytes_of_sample += report.bytes as f64 * own as f64 / padded.max(1) as f64;
            (prompts, tokens, computed) = (prompts + count, tokens + of_all, computed + own);
        }
    }
    let scale = pieces.len() as f64 / read.max(1) as f64;
    let (prompts, tokens) = ((prompts as f64 * scale) as usize, (tokens as f64 * scale) as usize);
    let of_all = |of_sample: f64| of_sample * tokens as f64 / computed.max(1) as f64;
    let (size, seconds) = (of_all(bytes_of_sample) as u64, of_all(seconds));
    let files = size.div_ceil(args.file_size.max(1));
    if args.json {
        let body = json!({
            "dry_run": true, "out": args.out, "prompts": prompts, "tokens": tokens, "files": files, "bytes": size,
            "seconds": seconds,
        });
        return print_result(Some(&ModelId::of(&args.model.model, model)?), body);
    }
    let (prompts, tokens) = (grouped(prompts), grouped(tokens));
    let (files, size, time) =
        (plural(files as usize, "file"), bytes(size), HumanDuration(Duration::from_secs_f64(seconds)));
    writeln!(
        stdout(),
        "about {prompts} prompts and {tokens} tokens: about {size} in {files}, about {time} on this machine"
    )?;
    Ok(())
}

/// Number of tokens of a batch, without padding.
fn real_tokens(tokens: &Tokens) -> usize {
    tokens.mask().map_or_else(|| tokens.ids().len(), |mask| mask.iter().filter(|real| **real).count())
}

/// Maximum number of prompts for which the reason for leaving them out is printed.
const SHOWN: usize = 10;

/// Number of batches that an estimate is based on.
const SAMPLED: usize = 4;

/// Dumps a few batches to a temporary folder, and prints what the whole dump would take.
fn estimate<M: DumpModel>(args: &DumpArgs, dump: &Dump, model: &M, rows: &[Vec<u32>], read: &[Vec<u32>]) -> CliResult {
    let size = args.batch_size(BATCH);
    let batches = rows.len().div_ceil(size);
    let positions = |rows: &[Vec<u32>]| rows.len() * rows.iter().map(Vec::len).max().unwrap_or(0);
    let (mut bytes_of_sample, mut sampled, mut seconds_of_sample) = (0, 0, 0.0);
    let chosen = (0..SAMPLED.min(batches)).map(|number| number * batches / SAMPLED.min(batches));
    // The first run also sets up memory and threads, so it is not timed.
    for (number, batch) in std::iter::once(0).filter(|_| batches > 0).chain(chosen).enumerate() {
        let own = batch * size..(batch * size + size).min(rows.len());
        let folder = tempfile::tempdir()?;
        let read = if read.is_empty() { Vec::new() } else { read[own.clone()].to_vec() };
        let dump = dump.clone().encoder_rows(read);
        let start = Instant::now();
        let report = dump.run(model, &rows[own.clone()], folder.path().join("sample"))?;
        if number > 0 {
            seconds_of_sample += start.elapsed().as_secs_f64();
            bytes_of_sample += report.bytes;
            sampled += positions(&rows[own]);
        }
    }
    let all: usize = rows.chunks(size).map(positions).sum();
    let scale = all as f64 / sampled.max(1) as f64;
    let (size, seconds) = ((bytes_of_sample as f64 * scale) as u64, seconds_of_sample * scale);
    let files = if to_file(&args.out) { 1 } else { batches };
    let tokens: usize = rows.iter().map(Vec::len).sum();
    if args.json {
        let body = json!({
            "dry_run": true, "out": args.out, "prompts": rows.len(), "tokens": tokens, "files": files, "bytes": size,
            "seconds": seconds,
        });
        return print_result(Some(&ModelId::of(&args.model.model, model)?), body);
    }
    let (prompts, tokens) = (plural(rows.len(), "prompt"), plural(tokens, "token"));
    let (files, size, time) = (plural(files, "file"), bytes(size), HumanDuration(Duration::from_secs_f64(seconds)));
    writeln!(stdout(), "{prompts}, {tokens}: about {size} in {files}, about {time} on this machine")?;
    Ok(())
}

/// The summary as the body of a JSON result.
fn json(report: &DumpReport, findings: &Findings, seconds: f64, path: &Path) -> Value {
    json!({
        "out": path, "prompts": report.rows, "tokens": report.tokens, "files": report.files, "bytes": report.bytes,
        "seconds": seconds, "shared_tokens": report.shared, "resumed_files": report.resumed,
        "prompts_left": report.left, "non_finite": report.non_finite, "heads": findings.json(),
    })
}

/// The source of the prompts, and the options that change their tokens, for a dump's manifest.
fn described(args: &DumpArgs) -> Map<String, Value> {
    let mut described = args.files.described();
    let bos = ("prepend_bos", args.prepend_bos.map(Value::from));
    let given = cuts(args).into_iter().chain([bos]);
    described.extend(given.filter_map(|(name, value)| Some((name.to_string(), value?))));
    described
}

/// The options that truncate or concatenate prompts.
fn cuts(args: &DumpArgs) -> [(&'static str, Option<Value>); 2] {
    [("truncate", args.truncate.map(Value::from)), ("concatenate", args.concatenate.map(Value::from))]
}

/// Prints a summary of the dump.
fn print(report: &DumpReport, findings: &Findings, seconds: f64, path: &Path) -> CliResult {
    let mut out = stdout();
    let place = path.display();
    let files = if report.files.len() == 1 { String::new() } else { format!(" in {} files", report.files.len()) };
    let (prompts, tokens) = (plural(report.rows, "prompt"), plural(report.tokens, "token"));
    writeln!(out, "{prompts}, {tokens} -> {place}{files}, {} ({seconds:.1} s)", bytes(report.bytes))?;
    if !report.non_finite.is_empty() {
        note(format!("the output contains NaN or infinite values at {}", report.non_finite.join(", ")));
    }
    if report.shared > 0 {
        let share = 100.0 * report.shared as f64 / report.tokens.max(1) as f64;
        let tokens = plural(report.shared, "token");
        writeln!(out, "{tokens} ({share:.0} %) were not computed again, because prompts of a batch share a prefix")?;
    }
    if report.resumed > 0 {
        let were = if report.resumed == 1 { "was" } else { "were" };
        writeln!(out, "{} {were} already complete (tokens not counted)", plural(report.resumed, "file"))?;
    }
    for line in findings.lines() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// File extensions that people may expect to work for activations, but that dumps don't support.
const OTHER_FILES: [&str; 9] = ["npz", "npy", "pt", "pth", "bin", "h5", "json", "csv", "parquet"];

/// Whether the output is a single file.
fn to_file(out: &Path) -> bool {
    out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"))
}

/// Splits a list at commas outside braces.
pub(super) fn split_globs(text: &str) -> Vec<&str> {
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
        (Some(text), _) => Ok(model.prompt_row(text, args.prepend_bos)?),
        (None, Some(rows)) => rows.one("--prefix-tokens"),
        (None, None) => Ok(Vec::new()),
    }
}

/// The prompts given on the command line or in files.
fn given(args: &DumpArgs) -> Result<Given, Failure> {
    if args.on_error == OnError::Skip && !args.dry_run {
        let message = "--on-error skip requires prompts in files and a folder as --out; it does not support \
                       encoder-decoders or points that only some tokens pass, such as those of experts";
        return Err(Failure::Usage(message.into()));
    }
    let given = Given::read(&args.files, args.tokens.as_ref(), &args.prompt)?;
    given.ok_or_else(|| Failure::Usage("--prompt, --prompts or --tokens is required".into()))
}

/// Tokenizes the prompts and applies `--truncate`. `tokens` may stop early, but must return at least the requested
/// number of ids if the text has that many.
fn rows(
    args: &DumpArgs,
    given: Given,
    tokens: impl Fn(&str, Option<usize>) -> LibResult<Vec<u32>>,
) -> Result<GivenRows, Failure> {
    let most = args.truncate.map(|most| most as usize);
    // One more token than the limit shows that the prompt is longer.
    let needed = most.map(|most| most.saturating_add(1));
    let mut given = given.rows(|prompt| match prompt {
        Prompt::Tokens(mut ids) => {
            ids.truncate(needed.unwrap_or(usize::MAX));
            Ok(ids)
        }
        Prompt::Text(text) => tokens(&text, needed),
    })?;
    if let Some(most) = most {
        let longer = given.rows.iter().filter(|row| row.len() > most).count();
        given.rows.iter_mut().for_each(|row| row.truncate(most));
        if longer > 0 {
            note(format!("truncated {longer} of {} prompts to {most} tokens", given.rows.len()));
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    #[test]
    fn commas_in_braces_do_not_split() {
        assert_eq!(super::split_globs("a.{q,k}, b,"), ["a.{q,k}", "b"]);
    }
}
