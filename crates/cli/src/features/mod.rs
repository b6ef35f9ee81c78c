//! `hooklens features` and its commands.

mod convert;
mod directions;
mod eval;
mod find;
mod info;
mod locked;
mod one;
mod show;
mod train;

use clap::{Args, Subcommand};

use super::CliResult;
pub(super) use eval::merged as merged_evaluation;

#[derive(Debug, Args)]
pub(super) struct FeaturesArgs {
    #[command(subcommand)]
    command: FeaturesCommand,
}

#[derive(Debug, Subcommand)]
enum FeaturesCommand {
    /// Describe a dictionary without reading its weights
    #[command(after_help = "Examples:
  hooklens features info embedded:ioi-sae
  hooklens features info \\
    ./gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82")]
    Info(info::InfoArgs),
    /// Convert a dictionary to SAELens's format, or transcoders of all layers to circuit-tracer's
    #[command(after_help = "Examples:
  hooklens features convert embedded:ioi-sae --out sae
  hooklens features convert ./layers.10 --out ./layers.10-saelens")]
    Convert(convert::ConvertArgs),
    /// Train sparse autoencoders, transcoders or a cross-layer transcoder
    #[command(after_help = "Examples:
  hooklens dump --model embedded:ioi --prompts prompts.txt \\
    --hooks '*resid_post' --out activations
  hooklens features train --model embedded:ioi --dump activations \\
    --at blocks.2.hook_resid_post --latents 64 --k 8 --tokens 100000 --out sae
  hooklens features train --model ./gpt2 --prompts corpus.txt \\
    --concatenate 128 --at blocks.6.hook_resid_pre --latents 12288 --k 32 \\
    --tokens 20000000 --checkpoint-every 1000000 --out sae
  hooklens features train --model ./gpt2 --dump ./activations \\
    --at blocks.6.mlp.hook_in --writes blocks.6.hook_mlp_out \\
    --latents 12288 --out transcoder")]
    Train(Box<train::TrainArgs>),
    /// Measure how well a dictionary, or a set of transcoders for all layers, reconstructs a model's activations
    #[command(after_help = "Examples:
  hooklens features eval --model embedded:ioi --dictionary embedded:ioi-sae \\
    --prompts prompts.txt --out measures.json
  hooklens features eval --model embedded:ioi --prompts prompts.txt \\
    --dictionary embedded:ioi-transcoders
  hooklens features eval --model embedded:ioi --prompts prompts.txt \\
    --dictionary embedded:ioi-transcoders --layer 2")]
    Eval(Box<eval::EvalArgs>),
    /// Make a dashboard of latents: the texts that activate them, and their effect on the next token
    #[command(after_help = "Examples:
  hooklens features show --model embedded:ioi --dictionary embedded:ioi-sae \\
    --prompts prompts.txt --latents 1,5 --query 'When Mary and John' \\
    --out latents.html
  hooklens features show --model embedded:ioi --neurons 3 \\
    --prompts prompts.txt --out neurons.html
  hooklens features show --model ./gpt2 --direction probe.safetensors \\
    --at blocks.6.hook_resid_post --prompts corpus.txt --out probe.html
  hooklens features show --model ./gpt2 --more french.txt --less english.txt \\
    --at blocks.6.hook_resid_post --prompts corpus.txt --out french.html")]
    Show(Box<show::ShowArgs>),
    /// Find latents by activation on a prompt, by attribution to a token, or by the difference between two sets of
    /// texts
    #[command(after_help = "Examples:
  hooklens features find --model embedded:ioi --dictionary embedded:ioi-sae \\
    --prompt 'When Mary and John went'
  hooklens features find --model embedded:ioi --dictionary embedded:ioi-sae \\
    --answer Mary --wrong John \\
    --prompt 'When Mary and John went to the store, John gave a drink to'
  hooklens features find --model ./gpt2 --dictionary ./sae \\
    --more french.txt --less english.txt")]
    Find(Box<find::FindArgs>),
}

pub(super) fn run(args: &FeaturesArgs) -> CliResult {
    match &args.command {
        FeaturesCommand::Info(args) => info::run(args),
        FeaturesCommand::Convert(args) => convert::run(args),
        FeaturesCommand::Train(args) => train::run(args),
        FeaturesCommand::Eval(args) => eval::run(args),
        FeaturesCommand::Show(args) => show::run(args),
        FeaturesCommand::Find(args) => find::run(args),
    }
}
