//! `hooklens man`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use super::CliResult;
use super::command::Cli;
use super::out::{unwritten, write};
use super::terminal::stdout;

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write hooklens.1 and one page per command to this folder, creating it if needed
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs) -> CliResult {
    let mut program = Cli::command();
    program.build();
    match &args.out {
        None => stdout().write_exactly(&page(program)?)?,
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(|e| unwritten(folder, &e))?;
            let mut written = 0;
            for command in with_commands(program) {
                // `hooklens dump` has the page `hooklens-dump`.
                let name = command.get_display_name().unwrap_or(command.get_name());
                let path = folder.join(format!("{name}.1"));
                write(&path, &page(command)?)?;
                written += 1;
            }
            writeln!(stdout(), "{written} pages -> {}", folder.display())?;
        }
    }
    Ok(())
}

/// A command and all of its subcommands.
fn with_commands(command: Command) -> Vec<Command> {
    let below: Vec<Command> =
        command.get_subcommands().filter(|below| below.get_name() != "help").cloned().flat_map(with_commands).collect();
    std::iter::once(command).chain(below).collect()
}

/// Renders a command's man page.
fn page(command: Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
