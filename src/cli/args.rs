//! The arguments, as the user writes them.

use std::path::PathBuf;

use burn::tensor::Device;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use hooklens_hooks::{DType, Positions};

use super::Failure;
use super::attention::AttentionArgs;
use super::attribute::AttributeArgs;
use super::bench::BenchArgs;
use super::completions::CompletionsArgs;
use super::heads::HeadsArgs;
use super::lens::LensArgs;
use super::man::ManArgs;
use super::merge::MergeArgs;
use super::notebook::NotebookArgs;
use super::parity::ParityArgs;
use super::patch::PatchArgs;
#[cfg(feature = "remote")]
use super::serve::ServeArgs;
use super::vocabulary::VocabularyArgs;
use crate::device::{DEVICE_VARIABLE, parse_device};
use crate::driver::Logits;
use crate::dump::Part;
use crate::kv_cache::{Bits, CacheKind, Offload};
use crate::loading::LoadOptions;
use crate::tokens::PaddingSide;

#[derive(Debug, Parser)]
#[command(
    name = "hooklens",
    version,
    about = "Look inside transformers: hook points, activations, patching, lenses, heads",
    max_term_width = 100
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the hook points of a model, in firing order
    #[command(after_help = "Example:\n  hooklens hooks --model embedded:induction")]
    Hooks(HooksArgs),
    /// Say what a model is, without reading its weights
    #[command(after_help = "Example:\n  hooklens info --model embedded:induction")]
    Info(InfoArgs),
    /// List the tokens of a model, with their ids: what prompts can be made of
    #[command(after_help = "Examples:
  hooklens vocabulary --model embedded:ioi
  hooklens vocabulary --model ./gpt2 --contains Mary")]
    Vocabulary(VocabularyArgs),
    /// Write activations of prompts to safetensors
    #[command(after_help = "Examples:
  hooklens dump --model embedded:induction --prompt 'red fox blue red' --hooks '*hook_pattern' --out patterns.safetensors
  hooklens dump --model ./gpt2 --prompts corpus.txt --hooks 'blocks.*.hook_resid_post' --dtype bf16 --out activations/
  hooklens dump --model ./gpt2 --prompts corpus.jsonl --concatenate 1024 --hooks 'blocks.6.hook_resid_pre' --out activations/
  hooklens dump --model ./gpt2 --prompts corpus.txt --hooks 'blocks.*.hook_resid_post' --dtype bf16 --out activations/ --resume")]
    Dump(Box<DumpArgs>),
    /// Go on from prompts, token by token
    #[command(after_help = "Examples:
  hooklens generate --model embedded:induction --prompt 'king drum sun star king drum' --max-new-tokens 2
  hooklens generate --model ./stories --prompt 'Once upon a time' --max-new-tokens 200 --temperature 0.8 --top-p 0.95 --seed 7")]
    Generate(Box<GenerateArgs>),
    /// Put activations of one prompt into the run of another, and see which matter
    #[command(after_help = "Examples:
  hooklens patch --model embedded:ioi --ioi 20 --out patch.svg
  hooklens patch --model embedded:ioi --ioi 20 --at '*attn.hook_z' --per head
  hooklens patch --model embedded:ioi --at '*hook_z' --per head,pos --answer Mary --wrong John \\
    --clean 'When Mary and John went to the store, John gave a drink to' \\
    --corrupted 'When Mary and John went to the store, Mary gave a drink to' --estimate")]
    Patch(Box<PatchArgs>),
    /// Attribute a logit to layers, heads or neurons, or a metric to edges
    #[command(after_help = "Examples:
  hooklens attribute --model embedded:ioi --prompt 'When Mary and John went to the store, John gave a drink to' --answer Mary --wrong John
  hooklens attribute --model embedded:ioi --to edges --ioi 10 --integrated 5 --out edges.csv")]
    Attribute(Box<AttributeArgs>),
    /// Read the residual stream of each layer as if it were the last
    #[command(after_help = "Example:
  hooklens lens --model embedded:ioi --prompt 'When Mary and John went to the store, John gave a drink to' --answer Mary --out lens.svg")]
    Lens(Box<LensArgs>),
    /// Find heads by what they look at
    #[command(after_help = "Example:
  hooklens heads --model embedded:induction --out heads.svg")]
    Heads(Box<HeadsArgs>),
    /// Show what heads look at in a text: a page to explore, a picture, or numbers
    #[command(after_help = "Examples:
  hooklens attention --model embedded:induction --prompt 'king drum sun star king drum sun' --out attention.html
  hooklens attention --model ./gpt2 --prompt 'When Mary and John went' --layers 5..8 --heads 1,5 --out attention.svg")]
    Attention(Box<AttentionArgs>),
    /// Compare a run with what another implementation computed, point by point
    #[command(after_help = "Example:
  python scripts/reference_dump.py ./gpt2 --prompt 'When Mary and John went' --out reference.safetensors
  hooklens parity --model ./gpt2 --reference reference.safetensors

Exit code 0 if every tensor agrees, 1 if one does not.")]
    Parity(ParityArgs),
    /// Measure a model's work on this machine, and its memory
    #[command(after_help = "Example:
  hooklens bench --model embedded:ioi
  hooklens bench --model ./gpt2 --work forward,decode --rounds 9 --json")]
    Bench(BenchArgs),
    /// Make one dump of the parts that several jobs made with `dump --shard`
    #[command(after_help = "Example:
  for i in 1 2 3; do hooklens dump --model ./gpt2 --prompts corpus.txt --shard $i/3 --out activations/$i; done
  hooklens merge --out activations activations/1 activations/2 activations/3")]
    Merge(MergeArgs),
    /// Write a notebook that opens a model and shows its attention
    #[command(after_help = "Examples:
  hooklens notebook first.ipynb
  hooklens notebook gpt2.ipynb --model gpt2 --prompt 'When Mary and John went to the store'")]
    Notebook(NotebookArgs),
    /// Print what a shell needs to complete this program's arguments
    #[command(after_help = "Examples:
  hooklens completions bash > ~/.local/share/bash-completion/completions/hooklens
  hooklens completions fish > ~/.config/fish/completions/hooklens.fish")]
    Completions(CompletionsArgs),
    /// Print this program's page for man, or write it and one for each command
    #[command(after_help = "Examples:
  hooklens man | man -l -
  hooklens man --out ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Offer this machine's devices to others, where `--device remote:ws://HOST:PORT` computes on them
    #[cfg(feature = "remote")]
    #[command(after_help = "Example:
  HOOKLENS_TOKEN=secret hooklens serve --device cuda:0 --listen 0.0.0.0:3000
  HOOKLENS_TOKEN=secret hooklens dump --device remote:ws://gpu:3000 --model ./gpt2 --prompt Hello --out dump")]
    Serve(ServeArgs),
}

#[derive(Debug, Args)]
pub(super) struct NameArg {
    /// A folder with config.json and weights, a checkpoint file, a hub id (ID@REVISION: as of then), or embedded:NAME
    #[arg(long, value_name = "MODEL")]
    pub(super) model: String,
}

#[derive(Debug, Args)]
pub(super) struct ModelArg {
    /// A folder with config.json and weights, a checkpoint file, a hub id (ID@REVISION: as of then), or embedded:NAME
    #[arg(long, value_name = "MODEL")]
    pub(super) model: String,
    /// The folder of a LoRA adapter to merge into the weights
    #[arg(long, value_name = "FOLDER")]
    pub(super) adapter: Option<PathBuf>,
    /// Where to compute: flex (this CPU), libtorch, libtorch:cuda:N, cuda:N, remote:ws://HOST:PORT; the blocks are
    /// spread over several
    #[arg(long, value_name = "DEVICE,...", env = DEVICE_VARIABLE, value_delimiter = ',', default_value = "flex")]
    pub(super) device: Vec<String>,
    /// Read weight files into memory instead of mapping them: for files that may be overwritten meanwhile
    #[arg(long)]
    pub(super) no_mmap: bool,
}

impl ModelArg {
    /// How to load it.
    pub(super) fn options(&self) -> Result<LoadOptions, Failure> {
        let options = LoadOptions::new().devices(&devices(&self.device)?).mmap(!self.no_mmap);
        Ok(match &self.adapter {
            Some(folder) => options.adapter(folder),
            None => options,
        })
    }
}

/// The devices of these names.
pub(super) fn devices(names: &[String]) -> Result<Vec<Device>, Failure> {
    names.iter().map(|name| parse_device(name).map_err(|e| Failure::Usage(e.to_string()))).collect()
}

#[derive(Debug, Args)]
pub(super) struct HooksArgs {
    #[command(flatten)]
    pub(super) model: NameArg,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    pub(super) model: NameArg,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompts", "tokens"])))]
pub(super) struct DumpArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// A prompt; may be given several times. One that begins with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    pub(super) prompt: Vec<String>,
    /// A file with a prompt a line, or, ending in .jsonl, a JSON string, {"text": ...} or {"tokens": [...]} a line
    #[arg(long, value_name = "FILE")]
    pub(super) prompts: Option<PathBuf>,
    /// Token ids: commas within a prompt, semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    pub(super) tokens: Option<TokenRows>,
    /// Points to dump: names, globs and shorthands, separated by commas (default: all that cost nothing)
    #[arg(long, value_name = "GLOB,...", default_value = "*")]
    pub(super) hooks: String,
    /// Which logits to write
    #[arg(long, value_enum, default_value = "none")]
    pub(super) logits: LogitsArg,
    /// Positions to keep of each prompt: A..B, N, or -1 for its last token
    #[arg(long, value_name = "POSITIONS", value_parser = positions, allow_hyphen_values = true, default_value = "..")]
    pub(super) positions: Positions,
    /// Element type of the files: f32, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = file_dtype)]
    pub(super) dtype: DType,
    /// Weights as published, or folded and centered as TransformerLens does
    #[arg(long, value_enum, default_value = "none")]
    pub(super) process: ProcessArg,
    /// Where shorter prompts of a batch are padded
    #[arg(long, default_value = "right")]
    pub(super) padding_side: PaddingSide,
    /// Whether text prompts get a beginning-of-sequence token (default: the model's habit)
    #[arg(long, value_name = "true|false", num_args = 1)]
    pub(super) prepend_bos: Option<bool>,
    /// Keep the first N tokens of longer prompts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) truncate: Option<u32>,
    /// Join the prompts, an end-of-sequence token between two, and dump them in rows of N tokens, as models are trained
    /// on; what is left at the end fills no row and is left out
    #[arg(long, value_name = "N", conflicts_with_all = ["truncate", "tokens"])]
    pub(super) concatenate: Option<usize>,
    /// Text that comes before every prompt, computed once and not dumped. It and the prompts are
    /// tokenized apart, so begin them where the tokenizer would: with GPT-2's, ' so' with its space
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix_tokens")]
    pub(super) prefix: Option<String>,
    /// Token ids that come before every prompt, computed once and not dumped
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    pub(super) prefix_tokens: Option<TokenRows>,
    /// Dump only the I-th of N shares of the prompts, to a folder of its own; `hooklens merge` makes one of all
    #[arg(long, value_name = "I/N")]
    pub(super) shard: Option<Part>,
    /// Compute what the prompts of a batch begin with anew for each of them
    #[arg(long)]
    pub(super) no_share_prefix: bool,
    /// Prompts computed together; each batch of a folder is a shard
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch_size: u32,
    /// Continue a folder that an earlier run left unfinished
    #[arg(long)]
    pub(super) resume: bool,
    /// A name ending in .safetensors for one file (which replaces one of that name), else a folder of shards
    #[arg(long, value_name = "FILE.safetensors|FOLDER")]
    pub(super) out: PathBuf,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "tokens"])))]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// A prompt; may be given several times. One that begins with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    pub(super) prompt: Vec<String>,
    /// Token ids: commas within a prompt, semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    pub(super) tokens: Option<TokenRows>,
    /// Tokens to add to each prompt at most
    #[arg(long, value_name = "N")]
    pub(super) max_new_tokens: usize,
    /// The most likely token each time (the default)
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub(super) greedy: bool,
    /// Divide logits by this and draw; 0 is greedy
    #[arg(long, value_name = "T")]
    pub(super) temperature: Option<f64>,
    /// Draw from the K most likely tokens
    #[arg(long, value_name = "K")]
    pub(super) top_k: Option<usize>,
    /// Draw from the most likely tokens that together have probability P
    #[arg(long, value_name = "P")]
    pub(super) top_p: Option<f64>,
    /// Draw from tokens with at least this share of the most likely one's probability
    #[arg(long, value_name = "P")]
    pub(super) min_p: Option<f64>,
    /// Take this off a token's logit for each time it has come
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    pub(super) frequency_penalty: f64,
    /// Divide the logits of tokens that have come by this
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) repetition_penalty: f64,
    /// Where chance begins: the same seed draws the same tokens
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// End a prompt's text once it holds this; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(super) stop: Vec<String>,
    /// How keys and values are kept; several at once with commas, as in `sliding,8bit`
    #[arg(long, value_enum, value_delimiter = ',', default_value = "growing")]
    pub(super) kv: Vec<KvArg>,
    /// Whether prompts get a beginning-of-sequence token (default: the model's habit)
    #[arg(long, value_name = "true|false", num_args = 1)]
    pub(super) prepend_bos: Option<bool>,
    /// Print JSON: tokens, text, log-probabilities, and why each prompt ended
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KvArg {
    /// In room that grows
    Growing,
    /// In room made at once
    Preallocated,
    /// What the layers' windows still see
    Sliding,
    /// In 8 bits an element
    #[value(name = "8bit")]
    EightBit,
    /// In 4 bits an element
    #[value(name = "4bit")]
    FourBit,
    /// In main memory, whatever the device
    Memory,
    /// In a temporary file
    Disk,
}

impl KvArg {
    /// The kind that all of these make, with room for this many positions where one limits it.
    pub(super) fn kind(all: &[KvArg], max_len: usize) -> CacheKind {
        all.iter().fold(CacheKind::GROWING, |kind, arg| match arg {
            KvArg::Growing => kind,
            KvArg::Preallocated => kind.limited(max_len),
            KvArg::Sliding => kind.sliding(),
            KvArg::EightBit => kind.quantized(Bits::Eight, 64),
            KvArg::FourBit => kind.quantized(Bits::Four, 64),
            KvArg::Memory => kind.offloaded(Offload::Memory),
            KvArg::Disk => kind.offloaded(Offload::Disk),
        })
    }
}

/// Rows of token ids.
#[derive(Debug, Clone)]
pub(super) struct TokenRows(pub(super) Vec<Vec<u32>>);

pub(super) fn token_rows(text: &str) -> Result<TokenRows, String> {
    let id = |word: &str| {
        let word = word.trim();
        word.parse::<u32>().map_err(|_| format!("`{word}` is not a token id; write 1,2,3;4,5,6"))
    };
    let row = |row: &str| row.split(',').map(id).collect::<Result<Vec<_>, _>>();
    text.split(';').map(row).collect::<Result<_, _>>().map(TokenRows)
}

pub(super) fn positions(text: &str) -> Result<Positions, String> {
    text.parse().map_err(|e: hooklens_hooks::HookError| e.to_string())
}

/// A type to compute in.
pub(super) fn float_type(text: &str) -> Result<DType, String> {
    text.parse().map_err(|e: String| e)
}

fn file_dtype(text: &str) -> Result<DType, String> {
    match text.parse()? {
        DType::F64 => Err("dumps are f32, f16 or bf16".to_string()),
        dtype => Ok(dtype),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogitsArg {
    /// Every position
    All,
    /// Each prompt's last token
    Last,
    /// None; the run stops after the last point asked for
    None,
}

impl From<LogitsArg> for Logits {
    fn from(arg: LogitsArg) -> Self {
        match arg {
            LogitsArg::All => Logits::All,
            LogitsArg::Last => Logits::Last,
            LogitsArg::None => Logits::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ProcessArg {
    /// As published
    None,
    /// fold_ln, centring and value-bias folding, where the model allows them
    Standard,
}
