//! The command line: parses arguments, calls the library, and prints results.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

mod any_model;
mod args;
mod attention;
mod attribute;
mod bench;
pub mod benchmark;
mod circuit;
mod command;
mod completions;
mod corpus;
mod count;
mod direction_file;
mod doctor;
mod dump;
mod feature_edit;
mod features;
mod findings;
mod generate;
mod given;
mod graph;
mod heads;
mod hint;
mod hooks;
mod info;
mod json_result;
mod lens;
mod loading_bar;
mod man;
mod memory;
mod merge;
mod notebook;
mod out;
mod out_of_memory;
mod pair_file;
mod pairs;
mod parity;
pub mod parity_check;
mod patch;
mod picture_args;
mod progress;
mod prompt_files;
mod prompts;
mod replacement;
#[cfg(feature = "remote")]
mod serve;
mod shard_arg;
mod share;
mod share_report;
mod signals;
mod size;
mod terminal;
mod tokenization;
mod uncertainty;
mod vocabulary;
mod written;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{DtypeArg, ModelArg, ProcessArg};
use command::{Cli, Command};
use terminal::say;

use hooklens_model::error::error_chain;
use hooklens_model::model::HookedTransformer;

type CliResult = Result<(), Failure>;

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// Conflicting or invalid arguments: exit code 2.
    Usage(String),
    /// A signal stopped the work, and running the command again resumes it: exit code 75 (`EX_TEMPFAIL`), which makes
    /// schedulers restart it.
    Stopped(String),
    /// The work failed: exit code 1.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Failed(error.into())
    }
}

/// Runs the program. Exit codes are 0 on success, 1 on failure, 2 for invalid arguments, and 75 if a signal stopped the
/// work and running the command again resumes it.
pub fn main() -> ExitCode {
    completions::answer_shell();
    hooklens_model::device::retain_freed_memory();
    signals::exit_on_abort();
    hooklens_io::caught::print_others_only();
    out_of_memory::end_instead_of_panicking();
    if let Some(message) = too_many_threads() {
        say(format_args!("error: {message}"));
        return ExitCode::from(2);
    }
    let command = match parse() {
        Ok(command) => command,
        Err(error) => return report_clap_error(&error),
    };
    if let Err(message) = start_threads() {
        say(format_args!("error: {message}"));
        return ExitCode::FAILURE;
    }
    signals::watch();
    let done = match command {
        Command::Hooks(args) => hooks::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Vocabulary(args) => vocabulary::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Prompts(args) => prompts::run(&args),
        Command::Patch(args) => patch::run(&args),
        Command::Attribute(args) => attribute::run(&args),
        Command::Circuit(args) => circuit::run(&args),
        Command::Lens(args) => lens::run(&args),
        Command::Heads(args) => heads::run(&args),
        Command::Attention(args) => attention::run(&args),
        Command::Features(args) => features::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Parity(args) => parity::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Notebook(args) => notebook::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        #[cfg(feature = "remote")]
        Command::Serve(args) => serve::run(&args),
    };
    // Buffered output that can't be written is an error here, instead of being lost silently.
    match done.and_then(|()| Ok(terminal::stdout().flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(reason)) => {
            say(format_args!("error: {reason}\n\nFor more information, try '--help'."));
            ExitCode::from(2)
        }
        Err(Failure::Stopped(reason)) => {
            say(format_args!("stopped: {reason}"));
            signals::end_if_interrupted();
            ExitCode::from(75)
        }
        Err(Failure::Failed(error)) => {
            say(format_args!("error: {}", error_chain(&*error)));
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments, and records the settings for results.
fn parse() -> Result<Command, clap::Error> {
    let matches = Cli::command().try_get_matches().map_err(hint::hinted)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    json_result::record(Cli::command, matches);
    terminal::set_quiet(cli.quiet);
    Ok(cli.command)
}

/// Prints help or a usage error. Arguments may contain control characters, so errors are escaped before printing.
fn report_clap_error(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let shown = terminal::shown(&text);
    if error.use_stderr() && shown != text {
        say(text.trim_end());
    } else if let Err(failed) = error.print()
        && !error.use_stderr()
    {
        return match failed.kind() {
            std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        };
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// An error message if `RAYON_NUM_THREADS` is unreasonably large.
fn too_many_threads() -> Option<String> {
    const MOST: usize = 4096;
    let asked = std::env::var("RAYON_NUM_THREADS").ok()?.parse().unwrap_or(0);
    (asked > MOST).then(|| format!("RAYON_NUM_THREADS is {asked}; the maximum is {MOST}"))
}

/// Starts rayon's global thread pool. Doing so up front allows reporting an error if the system refuses to start
/// threads.
fn start_threads() -> Result<(), String> {
    rayon::ThreadPoolBuilder::new().build_global().map_err(|error| {
        let count = std::env::var("RAYON_NUM_THREADS").ok().filter(|count| !count.is_empty());
        let count = count.map_or("one per core".to_string(), |count| format!("RAYON_NUM_THREADS is {count}"));
        let why = error_chain(&error);
        format!("cannot start the compute threads ({count}): {why}; set RAYON_NUM_THREADS=1 to use only one")
    })
}

/// Loads a decoder with the given options.
fn load(command: &str, model: &ModelArg, dtype: &DtypeArg, process: ProcessArg) -> Result<HookedTransformer, Failure> {
    any_model::decoder(command, model, model.processed(dtype.dtype, process)?)
}
