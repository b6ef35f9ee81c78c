//! `hooklens features` and its commands.

mod convert;
mod eval;
mod info;

use clap::{Args, Subcommand};

use super::CliResult;

#[derive(Debug, Args)]
pub(super) struct FeaturesArgs {
    #[command(subcommand)]
    command: FeaturesCommand,
}

#[derive(Debug, Subcommand)]
enum FeaturesCommand {
    /// Describe a dictionary, without reading its matrices
    #[command(after_help = "Example:
  hooklens features info ./gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82")]
    Info(info::InfoArgs),
    /// Write a dictionary in SAELens's format, or transcoders of all layers in circuit-tracer's
    #[command(after_help = "Example:
  hooklens features convert ./layers.10 --out ./layers.10-saelens")]
    Convert(convert::ConvertArgs),
    /// Measure how well a dictionary stands for a model's activations
    #[command(after_help = "Example:
  hooklens features eval --model ./gpt2 --dictionary ./sae --prompts corpus.txt --concatenate 128 --out measures.json")]
    Eval(Box<eval::EvalArgs>),
}

pub(super) fn run(args: &FeaturesArgs) -> CliResult {
    match &args.command {
        FeaturesCommand::Info(args) => info::run(args),
        FeaturesCommand::Convert(args) => convert::run(args),
        FeaturesCommand::Eval(args) => eval::run(args),
    }
}
