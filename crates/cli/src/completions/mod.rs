//! `hooklens completions`, and replies to shells that use its scripts.
//!
//! The printed script asks the program what may follow the cursor, so that completions include a model's hook points.
//! The shell sets [`VARIABLE`] to ask.

mod bash;
mod values;

pub(super) use values::{devices, dictionary, globs, heads, layers, model, points};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};

use super::CliResult;
use super::command::Cli;
use super::terminal::stdout;
use bash::Bash;

/// Environment variable with the name of the shell that asks for completions.
const VARIABLE: &str = "HOOKLENS_COMPLETE";

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

impl Shell {
    fn completer(self) -> &'static dyn EnvCompleter {
        match self {
            Shell::Bash => &Bash,
            Shell::Elvish => &Elvish,
            Shell::Fish => &Fish,
            Shell::Powershell => &Powershell,
            Shell::Zsh => &Zsh,
        }
    }
}

pub(super) fn run(args: &CompletionsArgs) -> CliResult {
    let mut script = Vec::new();
    args.shell.completer().write_registration(VARIABLE, "hooklens", "hooklens", "hooklens", &mut script)?;
    stdout().write_exactly(&script)?;
    Ok(())
}

/// Answers a shell that asks for completions, and ends the program; does nothing otherwise. Must be called before
/// threads are started, because it changes the environment.
pub(super) fn answer_shell() {
    let shells: [&dyn EnvCompleter; 5] = [&Bash, &Elvish, &Fish, &Powershell, &Zsh];
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).shells(Shells(&shells)).complete();
}
