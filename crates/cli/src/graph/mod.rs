//! `hooklens graph` and its commands.

mod change;
mod make;
mod tell;
mod view;

use std::collections::BTreeMap;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::CliResult;
use super::out::plural;
use hooklens_io::numerals::grouped;
use make::MakeArgs;
use view::ViewArgs;

/// Nouns for nodes of each kind, in the order of summaries.
const NOUNS: [&str; 6] = ["latent", "neuron", "error node", "token node", "position node", "output"];

/// Numbers of nodes by kind, for a summary: `18 latents, 1 error node`. Words that are not in [`NOUNS`] have no plural.
fn node_counts<'n>(nouns: impl IntoIterator<Item = &'n str>) -> String {
    let mut counts: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for noun in nouns {
        let place = NOUNS.iter().position(|own| *own == noun).unwrap_or(NOUNS.len());
        *counts.entry((place, noun)).or_default() += 1;
    }
    let counts = counts.into_iter().map(|((place, noun), count)| match place < NOUNS.len() {
        true => plural(count, noun),
        false => format!("{} {noun}", grouped(count)),
    });
    counts.collect::<Vec<_>>().join(", ")
}

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

#[cfg(test)]
mod tests {
    use super::node_counts;

    #[test]
    fn nodes_are_counted_by_kind() {
        let nouns = ["output", "of type \"bias\"", "latent", "error node", "latent", "of type \"bias\""];
        assert_eq!(node_counts(nouns), "2 latents, 1 error node, 1 output, 2 of type \"bias\"");
    }
}
