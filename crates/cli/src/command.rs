//! The program and its commands.

use clap::{Parser, Subcommand};

use super::attention::AttentionArgs;
use super::attribute::AttributeArgs;
use super::bench::BenchArgs;
use super::circuit::CircuitArgs;
use super::completions::CompletionsArgs;
use super::doctor::DoctorArgs;
use super::dump::DumpArgs;
use super::features::FeaturesArgs;
use super::generate::GenerateArgs;
use super::graph::GraphArgs;
use super::heads::HeadsArgs;
use super::hooks::HooksArgs;
use super::info::InfoArgs;
use super::lens::LensArgs;
use super::man::ManArgs;
use super::merge::MergeArgs;
use super::notebook::NotebookArgs;
use super::parity::ParityArgs;
use super::patch::PatchArgs;
use super::prompts::PromptsArgs;
#[cfg(feature = "remote")]
use super::serve::ServeArgs;
use super::vocabulary::VocabularyArgs;

#[derive(Debug, Parser)]
#[command(
    name = "hooklens",
    version,
    about = "Look inside transformers: hook points, activations, patching, lenses, heads",
    max_term_width = 100
)]
pub(super) struct Cli {
    /// Print only results and errors: no notes, progress bars or names of written files
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the hook points of a model, in firing order
    #[command(after_help = "Example:\n  hooklens hooks --model embedded:induction")]
    Hooks(HooksArgs),
    /// Describe a model without reading its weights
    #[command(after_help = "Example:\n  hooklens info --model embedded:induction")]
    Info(InfoArgs),
    /// List a model's tokens with their ids
    #[command(after_help = "Examples:
  hooklens vocabulary --model embedded:ioi
  hooklens vocabulary --model embedded:ioi --contains Mary")]
    Vocabulary(VocabularyArgs),
    /// Write activations of prompts to safetensors
    #[command(after_help = "Examples:
  hooklens dump --model embedded:induction --prompt 'red fox blue red' \\
    --hooks '*hook_pattern' --out patterns.safetensors
  hooklens dump --model embedded:ioi --prompts prompts.txt --dtype bf16 \\
    --hooks 'blocks.*.hook_resid_post' --out activations/
  hooklens dump --model embedded:ioi --prompts prompts.txt --dtype bf16 \\
    --hooks 'blocks.*.hook_resid_post' --out activations/ --resume
  hooklens dump --model ./gpt2 --prompts corpus.jsonl --concatenate 1024 \\
    --hooks 'blocks.6.hook_resid_pre' --out rows/")]
    Dump(Box<DumpArgs>),
    /// Generate text from prompts, token by token
    #[command(after_help = "Examples:
  hooklens generate --model embedded:induction \\
    --prompt 'king drum sun star king drum' --max-new-tokens 2
  hooklens generate --model embedded:ioi --prompt 'When Mary and John' \\
    --max-new-tokens 9 --temperature 0.8 --top-p 0.95 --seed 7")]
    Generate(Box<GenerateArgs>),
    /// Generate pairs of clean and corrupted prompts for `patch --pairs`
    #[command(after_help = "Examples:
  hooklens prompts ioi --model embedded:ioi --count 20 --out pairs.jsonl
  hooklens patch --model embedded:ioi --pairs pairs.jsonl")]
    Prompts(PromptsArgs),
    /// Activation patching: replace activations in one prompt's run with activations from another's
    #[command(after_help = "Examples:
  hooklens patch --model embedded:ioi --ioi 20 --out patch.svg
  hooklens patch --model embedded:ioi --ioi 20 --at '*attn.hook_z' --per head
  hooklens patch --model embedded:ioi --at '*hook_z' --per head,pos \\
    --answer Mary --wrong John --estimate \\
    --clean 'When Mary and John went to the store, John gave a drink to' \\
    --corrupted 'When Mary and John went to the store, Mary gave a drink to'")]
    Patch(Box<PatchArgs>),
    /// Attribute a logit to layers, heads or neurons, or a metric to edges
    #[command(after_help = "Examples:
  hooklens attribute --model embedded:ioi --answer Mary --wrong John \\
    --prompt 'When Mary and John went to the store, John gave a drink to'
  hooklens attribute --model embedded:ioi --to edges --ioi 10 --integrated 5 \\
    --out edges.csv")]
    Attribute(Box<AttributeArgs>),
    /// Discover a circuit of edges, and prove it: faithfulness, stability, completeness, adversarial ablation
    #[command(after_help = "Examples:
  hooklens circuit --model embedded:ioi --ioi 20 --save ioi.json
  hooklens circuit --model embedded:ioi --ioi 20 --ablate mean \\
    --circuit ioi.json
  hooklens circuit --model embedded:ioi --ioi 20 --method eap-ig \\
    --share 0.1 --select greedy --out curve.svg --diagram circuit.svg")]
    Circuit(Box<CircuitArgs>),
    /// Logit lens: decode each layer's residual stream with the model's unembedding
    #[command(after_help = "Example:
  hooklens lens --model embedded:ioi --answer Mary --out lens.svg \\
    --prompt 'When Mary and John went to the store, John gave a drink to'")]
    Lens(Box<LensArgs>),
    /// Score attention heads as previous-token, duplicate-token and induction heads
    #[command(after_help = "Example:
  hooklens heads --model embedded:induction --out heads.svg")]
    Heads(Box<HeadsArgs>),
    /// Show the attention patterns of a text: an interactive page, a picture, or numbers
    #[command(after_help = "Examples:
  hooklens attention --model embedded:induction --out attention.html \\
    --prompt 'king drum sun star king drum sun'
  hooklens attention --model embedded:ioi --prompt 'When Mary and John went' \\
    --layers 1..3 --heads 0,2 --out attention.svg")]
    Attention(Box<AttentionArgs>),
    /// Sparse autoencoders and transcoders: describe, convert, train and evaluate them, make dashboards, find latents
    #[command(after_help = "Examples:
  hooklens features info embedded:ioi-sae
  hooklens features find --model embedded:ioi --dictionary embedded:ioi-sae \\
    --answer Mary --wrong John \\
    --prompt 'When Mary and John went to the store, John gave a drink to'")]
    Features(FeaturesArgs),
    /// Attribution graphs: which features led the model to its output
    #[command(after_help = "Examples:
  hooklens graph --model embedded:ioi --out graph.html \\
    --prompt 'When Mary and John went to the store, John gave a drink to'
  hooklens graph --model embedded:ioi --neurons 32 \\
    --answer Mary --wrong John --check \\
    --prompt 'When Mary and John went to the store, John gave a drink to'
  hooklens graph --model ./gemma-2-2b --dictionary ./gemma-scope-transcoders \\
    --prompt 'The capital of the state containing Dallas is' --out graph.json

Exit code 1 if the contributions do not sum to the model's values, or if --check fails.")]
    Graph(Box<GraphArgs>),
    /// Compare a run with another implementation's activations, point by point
    #[command(after_help = "Example:
  python scripts/reference_dump.py ./gpt2 --prompt 'When Mary and John went' \\
    --out reference.safetensors
  hooklens parity --model ./gpt2 --reference reference.safetensors

Exit code 0 if every tensor is within the tolerance, 1 otherwise.")]
    Parity(ParityArgs),
    /// Measure a model's speed and memory on this machine
    #[command(after_help = "Examples:
  hooklens bench --model embedded:ioi
  hooklens bench --model embedded:ioi --work forward,decode --rounds 9 --json")]
    Bench(BenchArgs),
    /// Check this machine and this build, report what a model needs, and give advice
    #[command(after_help = "Examples:
  hooklens doctor
  hooklens doctor --model ./llama-8b")]
    Doctor(DoctorArgs),
    /// Merge the shards that several jobs wrote with `dump --shard`
    #[command(after_help = "Example:
  for i in 1 2 3; do \\
    hooklens dump --model embedded:ioi --prompts prompts.txt \\
      --hooks '*resid_post' --shard $i/3 --out activations; \\
  done
  hooklens merge --out activations")]
    Merge(MergeArgs),
    /// Write a notebook that opens a model and shows its attention patterns
    #[command(after_help = "Examples:
  hooklens notebook first.ipynb
  hooklens notebook ioi.ipynb --model embedded:ioi \\
    --prompt 'When Mary and John went to the store'")]
    Notebook(NotebookArgs),
    /// Print a shell completion script
    #[command(after_help = "Examples:
  mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions
  hooklens completions bash \\
    > ~/.local/share/bash-completion/completions/hooklens
  hooklens completions fish > ~/.config/fish/completions/hooklens.fish")]
    Completions(CompletionsArgs),
    /// Print the man page, or write it to a folder with one page per command
    #[command(after_help = "Examples:
  hooklens man | man -l -
  hooklens man --out ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Serve this machine's devices to other machines, which use them with `--device remote:ws://HOST:PORT`
    #[cfg(feature = "remote")]
    #[command(after_help = "Example, with the same token on both machines:
  export HOOKLENS_TOKEN=$(openssl rand -hex 16)
  hooklens serve --device cuda:0 --listen 0.0.0.0:3000
  hooklens dump --device remote:ws://gpu:3000 --model ./gpt2 --prompt Hello \\
    --hooks '*resid_post' --out dump")]
    Serve(ServeArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Argument names and ids are unique within each command. clap checks this in debug builds only.
    #[test]
    fn no_two_arguments_have_a_name() {
        fn check(command: &clap::Command) {
            let mut names: Vec<String> =
                command.get_arguments().filter_map(|own| Some(own.get_long()?.to_string())).collect();
            let mut ids: Vec<String> = command.get_arguments().map(|own| own.get_id().to_string()).collect();
            for of in [&mut names, &mut ids] {
                let count = of.len();
                of.sort();
                of.dedup();
                assert_eq!(of.len(), count, "{}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&super::Cli::command());
    }
}
