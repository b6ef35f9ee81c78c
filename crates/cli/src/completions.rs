//! `hooklens completions`.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::CliResult;
use super::command::Cli;
use super::terminal::stdout;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> CliResult {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "hooklens", &mut script);
    stdout().write_exactly(&script)?;
    Ok(())
}
