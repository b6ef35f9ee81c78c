//! `hooklens graph` and its commands.

mod change;
mod make;
mod tell;
mod view;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::CliResult;
use make::MakeArgs;
use view::ViewArgs;

/// Arguments that make a graph, or a subcommand that works on one.
#[derive(Debug)]
pub(super) enum GraphArgs {
    Make(Box<MakeArgs>),
    View(ViewArgs),
}

// Implemented by hand, because clap's derive does not support a command that takes either its own arguments or a
// subcommand.
impl FromArgMatches for GraphArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((_, of_view)) => Ok(Self::View(ViewArgs::from_arg_matches(of_view)?)),
            None => Ok(Self::Make(Box::new(MakeArgs::from_arg_matches(matches)?))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GraphArgs {
    fn augment_args(command: Command) -> Command {
        let view = Command::new("view")
            .about("Summarize a graph file written by any tool, and write an HTML page that shows it")
            .after_help(
                "Example:
  hooklens graph --model embedded:ioi --prompt 'When Mary and John went to' \\
    --out graph.json
  hooklens graph view graph.json --out graph.html",
            );
        MakeArgs::augment_args(command)
            .subcommand(ViewArgs::augment_args(view))
            .subcommand_negates_reqs(true)
            .args_conflicts_with_subcommands(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

pub(super) fn run(args: &GraphArgs) -> CliResult {
    match args {
        GraphArgs::Make(args) => make::run(args),
        GraphArgs::View(args) => view::run(args),
    }
}
