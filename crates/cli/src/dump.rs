//! `hooklens dump`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args, ValueEnum};
use hooklens_hooks::{DType, Positions};
use indicatif::{ProgressBar, ProgressStyle};

use super::any_model::{AnyModel, past_context};
use super::args::{ModelArg, ProcessArg, TokenRows, float_type, positions, token_rows};
use super::findings::Findings;
use super::given::{Given, GivenRows, to_join};
use super::out::spare;
use super::prompt_files::PromptFiles;
use super::shard_arg::ShardArg;
use super::signals;
use super::terminal::{note, stdout};
use super::written::WrittenArg;
use super::{CliResult, Failure};
use hooklens_data::corpus::Prompt;
use hooklens_data::dump::{Dump, DumpModel, DumpReport, Seen, Shard, is_whole};
use hooklens_io::numerals::{bytes, grouped};
use hooklens_io::object_stores::is_url;
use hooklens_model::driver::Logits;
use hooklens_model::encoder_decoder::HookedEncoderDecoder;
use hooklens_model::error::{Error, Result as LibResult};
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::PaddingSide;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompts", "tokens"])))]
pub(super) struct DumpArgs {
    #[command(flatten)]
    model: ModelArg,
    /// A prompt; may be given several times. One that begins with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    prompt: Vec<String>,
    #[command(flatten)]
    files: PromptFiles,
    /// Token ids: commas within a prompt, semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    tokens: Option<TokenRows>,
    #[command(flatten)]
    written: WrittenArg,
    /// Dump points of an encoder-decoder's decoder, on this field of each JSON line of --prompts, of which --field is what the
    /// encoder reads: a text, or token ids without the start token
    #[arg(long, value_name = "NAME", requires = "prompts", conflicts_with_all = ["decoder_prompt", "decoder_tokens"])]
    decoder_field: Option<String>,
    /// Points to dump: names, globs and shorthands, separated by commas (default: all that cost nothing)
    #[arg(long, value_name = "GLOB,...", default_value = "*")]
    hooks: String,
    /// Which logits to write
    #[arg(long, value_enum, default_value = "none")]
    logits: LogitsArg,
    /// Positions to keep of each prompt: A..B, N, or -1 for its last token
    #[arg(long, value_name = "POSITIONS", value_parser = positions, allow_hyphen_values = true, default_value = "..")]
    positions: Positions,
    /// Element type of the files: f32, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = file_dtype)]
    dtype: DType,
    /// Write Parquet files: a row a token, a column a point, no padding; in a build with the feature `arrow`
    #[arg(long)]
    tables: bool,
    /// Element type to keep the weights and compute in: f32, bf16, f16 or f64 (default: f32, on weights as the files
    /// hold them)
    #[arg(long, value_name = "TYPE", value_parser = float_type)]
    compute_dtype: Option<DType>,
    #[command(flatten)]
    process: ProcessArg,
    /// Where shorter prompts of a batch are padded
    #[arg(long, default_value = "right")]
    padding_side: PaddingSide,
    /// Whether text prompts get a beginning-of-sequence token (default: the model's habit)
    #[arg(long, value_name = "true|false", num_args = 1)]
    prepend_bos: Option<bool>,
    /// Keep the first N tokens of longer prompts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    truncate: Option<u32>,
    /// Join the prompts, an end-of-sequence token between two, and dump them in rows of N tokens, as models are trained
    /// on; what is left at the end fills no row and is left out
    #[arg(long, value_name = "N", conflicts_with_all = ["truncate", "tokens"])]
    concatenate: Option<usize>,
    /// Text that comes before every prompt, computed once and not dumped. It and the prompts are
    /// tokenized apart, so begin them where the tokenizer would: with GPT-2's, ' so' with its space
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix_tokens")]
    prefix: Option<String>,
    /// Token ids that come before every prompt, computed once and not dumped
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    prefix_tokens: Option<TokenRows>,
    /// Dump only the I-th of N shards of the prompts, to a folder of its own; `hooklens merge` makes one of all. `auto` is the
    /// share of a task of a Slurm job array, of `srun`, or (with its number, auto/N) of a Kubernetes indexed job, in a
    /// folder within --out; it goes on with what an earlier run left there
    #[arg(long, value_name = "I/N|auto[/N]")]
    shard: Option<ShardArg>,
    /// Compute what the prompts of a batch begin with anew for each of them
    #[arg(long)]
    no_share_prefix: bool,
    /// Prompts computed together; each batch of a folder is a file
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Write values that are no finite numbers, with a note, instead of failing
    #[arg(long)]
    allow_non_finite: bool,
    /// Continue a folder that an earlier run left unfinished
    #[arg(long)]
    resume: bool,
    /// With --resume or --shard auto: compare the lengths of finished files only, not their bytes
    #[arg(long)]
    no_verify: bool,
    /// A name ending in .safetensors for one file (which replaces one of that name), else a folder of files, one a batch; in a
    /// build with the feature `object-stores` a folder of a store, too: s3://bucket/folder, gs://, az://
    #[arg(long, value_name = "FILE.safetensors|FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogitsArg {
    /// Every position
    All,
    /// Each prompt's last token
    Last,
    /// None; the run stops after the last point asked for
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
    match text.parse()? {
        DType::F64 => Err("dumps are f32, f16 or bf16".to_string()),
        dtype => Ok(dtype),
    }
}

pub(super) fn run(args: &DumpArgs) -> CliResult {
    let globs = split_globs(&args.hooks);
    if globs.is_empty() {
        return Err(Failure::Usage("--hooks names no point".into()));
    }
    if args.shard.is_some() && to_file(&args.out) {
        return Err(Failure::Usage("--shard writes a folder, which `hooklens merge` makes one with the others".into()));
    }
    if args.resume && to_file(&args.out) {
        return Err(Failure::Usage("--resume continues a folder; a file appears when it is whole".into()));
    }
    if to_file(&args.out) && is_url(&args.out) {
        return Err(Failure::Usage("one file is not written to a store of objects; name a folder there".into()));
    }
    if args.no_verify && !args.resume && !args.shard.is_some_and(ShardArg::resumes) {
        return Err(Failure::Usage("--no-verify is of --resume, and of --shard auto, which resumes".into()));
    }
    spare(Some(&args.out), args.model.inputs().into_iter().chain(args.files.files()))?;
    let shard = args.shard.map(ShardArg::shard).transpose().map_err(Failure::Usage)?;
    if let Some((arg, shard)) = args.shard.zip(shard) {
        arg.check(shard, &args.out)?;
    }
    // One file is not written by halves: a signal ends that at once.
    if !to_file(&args.out) {
        signals::stop();
    }
    let options = args.model.processed(args.compute_dtype, args.process)?;
    let model = AnyModel::load_for(&args.model, options, args.prepend_bos)?;
    if !matches!(model, AnyModel::EncoderDecoder(_)) && (args.written.is_given() || args.decoder_field.is_some()) {
        return Err(Failure::Usage(
            "--decoder-prompt, --decoder-tokens and --decoder-field are for encoder-decoders".into(),
        ));
    }
    match model {
        AnyModel::Decoder(model) => {
            let prefix = prefix(args, &model)?;
            let after_prefix = !prefix.is_empty();
            let prepend_bos = if after_prefix { Some(false) } else { args.prepend_bos };
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
            let given = rows(args, given(args)?, |text, _| Ok(model.to_tokens(text)?.tokens.real(0)))?;
            dumped(args, globs, &model, Vec::new(), given, Vec::new(), shard)
        }
        AnyModel::EncoderDecoder(model) => {
            framed(args)?;
            let mut given = rows(args, given(args)?, |text, _| Ok(model.to_tokens(text)?.real(0)))?;
            // Of the decoder's points the prompts are what it has written.
            let read = match decoder_rows(args, &model, given.rows.len())? {
                Some(written) => std::mem::replace(&mut given.rows, written),
                None => Vec::new(),
            };
            dumped(args, globs, &model, Vec::new(), given, read, shard)
        }
    }
}

/// What the decoder of an encoder-decoder has written, for each prompt.
fn decoder_rows(args: &DumpArgs, model: &HookedEncoderDecoder, count: usize) -> Result<Option<Vec<Vec<u32>>>, Failure> {
    let Some(field) = &args.decoder_field else {
        return Ok(if args.written.is_given() { Some(vec![args.written.row(model)?; count]) } else { None });
    };
    let written = Given::Files(args.files.read_field(field)?).rows(|prompt| match prompt {
        Prompt::Tokens(ids) => Ok([vec![model.config().decoder_start_token], ids].concat()),
        Prompt::Text(text) => model.written(Some(&text)),
    })?;
    match written.rows.len() {
        len if len == count => Ok(Some(written.rows)),
        len => Err(Failure::Failed(format!("{count} prompts, but {len} of the field `{field}`").into())),
    }
}

/// An error for options that an encoder has no use for.
fn framed(args: &DumpArgs) -> CliResult {
    let given = [
        ("--prefix", args.prefix.is_some() || args.prefix_tokens.is_some()),
        ("--concatenate", args.concatenate.is_some()),
        ("--prepend-bos", args.prepend_bos.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            let told = format!("{option} is for decoders; an encoder's tokenizer frames each prompt itself");
            Err(Failure::Usage(told))
        }
        None => Ok(()),
    }
}

/// Dumps these rows and prints a summary.
fn dumped<M: DumpModel>(
    args: &DumpArgs,
    globs: Vec<&str>,
    model: &M,
    prefix: Vec<u32>,
    given: GivenRows,
    read: Vec<Vec<u32>>,
    shard: Option<Shard>,
) -> CliResult {
    let own_folder = args.shard.zip(shard).map(|(arg, shard)| arg.folder(shard, &args.out));
    let path = own_folder.as_deref().unwrap_or(&args.out);
    // Shares of its own may be merged there already.
    if path != args.out
        && is_whole(&args.out).map_err(Error::from)?.is_some()
        && is_whole(path).map_err(Error::from)?.is_none()
    {
        let told = format!("{} holds a dump, and none of this job's shares; choose another place", args.out.display());
        return Err(Failure::Failed(told.into()));
    }
    let dump = Dump::new(globs)
        .positions(args.positions.clone())
        .dtype(args.dtype)
        .logits(args.logits.into())
        .padding_side(args.padding_side)
        .batch_size(args.batch_size as usize)
        .prefix(prefix)
        .encoder_rows(read)
        .resume(args.resume || args.shard.is_some_and(ShardArg::resumes))
        .verify(!args.no_verify)
        .share_prefix(!args.no_share_prefix)
        .allow_non_finite(args.allow_non_finite)
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
        return Err(Failure::Usage("this build writes no tables; build it with --features arrow".into()));
    }
    let dump = if to_file(path) { dump } else { dump.stop_when(signals::stop()) };
    let dump = match shard {
        Some(shard) => dump.shard(shard),
        None => dump,
    };

    let bar = ProgressBar::new(dump.own_rows(given.rows.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts {per_sec} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut findings = Findings::default();
    let start = Instant::now();
    let report = dump.run_watched(model, &given.rows, path, &mut |seen| match seen {
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
    let report = report.map_err(|error| given.told(error))?;

    let printed = print(&report, &findings, start.elapsed().as_secs_f64(), path);
    if report.left > 0 {
        let again = if args.shard.is_some_and(ShardArg::resumes) { "the same command" } else { "--resume" };
        return Err(Failure::Stopped(format!("{} prompts are left; {again} goes on", grouped(report.left))));
    }
    printed
}

/// Prints what was written.
fn print(report: &DumpReport, findings: &Findings, seconds: f64, path: &Path) -> CliResult {
    let mut out = stdout();
    let place = path.display();
    let files = if report.files.len() == 1 { String::new() } else { format!(" in {} files", report.files.len()) };
    writeln!(
        out,
        "{} prompts, {} tokens -> {place}{files}, {} ({seconds:.1} s)",
        grouped(report.rows),
        grouped(report.tokens),
        bytes(report.bytes)
    )?;
    if !report.non_finite.is_empty() {
        note(format!("values that are no finite numbers were written: {}", report.non_finite.join(", ")));
    }
    if report.shared > 0 {
        let share = 100.0 * report.shared as f64 / report.tokens.max(1) as f64;
        writeln!(out, "{} tokens ({share:.0} %) not run: prompts begin alike", grouped(report.shared))?;
    }
    if report.resumed > 0 {
        writeln!(out, "{} files were there already; their tokens are not counted", report.resumed)?;
    }
    for line in findings.lines() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Whether a name is that of one file.
fn to_file(out: &Path) -> bool {
    out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"))
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
        (Some(text), _) => Ok(model.prompt_row(text, args.prepend_bos)?),
        (None, Some(rows)) => rows.one("--prefix-tokens"),
        (None, None) => Ok(Vec::new()),
    }
}

/// The prompts that are asked for.
fn given(args: &DumpArgs) -> Result<Given, Failure> {
    Ok(match (&args.tokens, args.files.read()?) {
        (Some(rows), _) => Given::Options(rows.0.iter().cloned().map(Prompt::Tokens).collect()),
        (None, Some(prompts)) => Given::Files(prompts),
        (None, None) => Given::texts(&args.prompt),
    })
}

/// The prompts as token ids, cut to as many as they may have; `tokens` gives no fewer than the first that it is asked for.
fn rows(
    args: &DumpArgs,
    given: Given,
    tokens: impl Fn(&str, Option<usize>) -> LibResult<Vec<u32>>,
) -> Result<GivenRows, Failure> {
    let most = args.truncate.map(|most| most as usize);
    // One more says that there are more.
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
            note(format!("{longer} of {} prompts cut to {most} tokens", given.rows.len()));
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
