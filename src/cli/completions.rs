//! `hooklens completions`.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::CliResult;
use super::command::Cli;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> CliResult {
    // To memory first: a reader that goes away ends the program quietly.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "hooklens", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}
