//! Arguments shared by several commands.

use std::collections::HashSet;
use std::hash::Hash;
use std::path::PathBuf;

use burn::tensor::Device;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use hooklens_hooks::Positions;

use super::loading_bar::LoadingBar;
use super::{Failure, completions, size};
use hooklens_loading::loading::{ComputeType, LoadOptions, sources};
use hooklens_model::device::{DEVICE_VARIABLE, parse_device};
use hooklens_model::processing::Processing;

/// Environment variable that names the model if `--model` is not given.
pub(super) const MODEL_VARIABLE: &str = "HOOKLENS_MODEL";

#[derive(Debug, Args)]
pub(super) struct NameArg {
    /// A folder with config.json and weights, a checkpoint file, a hub id (ID@REVISION to pin a revision),
    /// embedded:induction or embedded:ioi
    #[arg(long, value_name = "MODEL", env = MODEL_VARIABLE, value_parser = NonEmptyStringValueParser::new(), add = completions::model())]
    pub(super) model: String,
}

/// Compute dtype, for commands that do not write activations.
#[derive(Debug, Args)]
pub(super) struct DtypeArg {
    /// Element type to store the weights and compute in: f32, bf16, f16 or f64 (default: compute in f32 and keep the
    /// weights as stored); q8, to keep quantized weights as stored and round their inputs to 8 bits, as llama.cpp does;
    /// or bf16-products, to keep bf16 weights as stored and round their inputs to bf16
    #[arg(long, value_name = "TYPE")]
    pub(super) dtype: Option<ComputeType>,
}

/// Weight processing applied to a decoder when it is loaded.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ProcessArg {
    /// Weight processing: as published, or folded and centered as TransformerLens does by default
    #[arg(long, value_enum, default_value = "none")]
    process: Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Process {
    /// As published
    None,
    /// fold_ln, centering and value-bias folding, where the model allows them
    Standard,
}

impl ProcessArg {
    fn processing(self) -> Processing {
        match self.process {
            Process::None => Processing::none(),
            Process::Standard => Processing::standard(),
        }
    }

    /// Value of `--process` as written on the command line.
    pub(super) fn name(self) -> &'static str {
        match self.process {
            Process::None => "none",
            Process::Standard => "standard",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ModelArg {
    /// A folder with config.json and weights, a checkpoint file, a hub id (ID@REVISION to pin a revision),
    /// embedded:induction or embedded:ioi
    #[arg(long, value_name = "MODEL", env = MODEL_VARIABLE, value_parser = NonEmptyStringValueParser::new(), add = completions::model())]
    pub(super) model: String,
    /// Folder of a LoRA adapter to merge into the weights
    #[arg(long, value_name = "FOLDER")]
    pub(super) adapter: Option<PathBuf>,
    /// Device to compute on: flex (this CPU), libtorch, libtorch:cuda:N, cuda:N, vulkan:N, metal:N, wgpu:N,
    /// remote:ws://HOST:PORT (`hooklens info --devices` lists those available); with several, the blocks are split
    /// across them
    #[arg(long, value_name = "DEVICE,...", env = DEVICE_VARIABLE, value_delimiter = ',', default_value = "flex", add = completions::devices())]
    pub(super) device: Vec<String>,
    /// Read weight files into memory instead of mapping them, for files that may be overwritten while in use
    #[arg(long)]
    pub(super) no_mmap: bool,
    /// Splice a sparse autoencoder or transcoders into the model, adding back the reconstruction error: a file, a folder,
    /// embedded:ioi-sae or embedded:ioi-transcoders; may be given several times
    #[arg(long, value_name = "PATH", add = completions::dictionary())]
    pub(super) dictionary: Vec<PathBuf>,
    /// Apply the dictionary at every token, including special tokens that it was not trained on (usually the BOS token)
    #[arg(long, requires = "dictionary")]
    pub(super) all_tokens: bool,
    /// Keep the weights within this much memory, e.g. 6GB; layers that do not fit are read from the file on each pass
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) max_memory: Option<u64>,
}

impl ModelArg {
    /// Files and folders that the model is read from.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        sources(&self.model).into_iter().chain(self.adapter.clone()).chain(self.dictionary.clone()).collect()
    }

    /// Options to load the model with, including weight processing.
    pub(super) fn processed(&self, dtype: Option<ComputeType>, process: ProcessArg) -> Result<LoadOptions, Failure> {
        Ok(self.options(dtype)?.process(process.processing()))
    }

    /// Options to load the model with.
    pub(super) fn options(&self, dtype: Option<ComputeType>) -> Result<LoadOptions, Failure> {
        let options = LoadOptions::new().devices(&devices(&self.device)?).mmap(!self.no_mmap);
        let options = dtype.into_iter().fold(options, |options, dtype| dtype.set(options));
        let bar = LoadingBar::default();
        let options = options.progress(move |done, total| bar.tell(done, total));
        let options = self.max_memory.into_iter().fold(options, LoadOptions::memory);
        Ok(match &self.adapter {
            Some(folder) => options.adapter(folder),
            None => options,
        })
    }
}

/// Parses device names.
pub(super) fn devices(names: &[String]) -> Result<Vec<Device>, Failure> {
    let mut servers: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("remote:")).collect();
    servers.iter_mut().for_each(|server| *server = server.split('#').next().unwrap_or_default().trim_end_matches('/'));
    servers.dedup();
    if servers.len() > 1 {
        let reason = "remote devices must belong to one server, as in remote:ws://HOST:PORT#0,remote:ws://HOST:PORT#1";
        return Err(Failure::Usage(reason.to_string()));
    }
    names.iter().map(|name| parse_device(name).map_err(|e| Failure::Usage(e.to_string()))).collect()
}

/// Rows of token ids: `1,2;3,4`.
#[derive(Debug, Clone)]
pub(super) struct TokenRows(pub(super) Vec<Vec<u32>>);

impl TokenRows {
    /// The only row, for an option that takes one prompt; an error if there are several.
    pub(super) fn one(&self, option: &str) -> Result<Vec<u32>, Failure> {
        match &self.0[..] {
            [row] => Ok(row.clone()),
            rows => Err(Failure::Usage(format!(
                "{option} takes one prompt, but {} were given; remove the semicolons",
                rows.len()
            ))),
        }
    }
}

pub(super) fn token_rows(text: &str) -> Result<TokenRows, String> {
    let id = |word: &str| {
        let word = word.trim();
        word.parse::<u32>()
            .map_err(|_| format!("`{word}` is not a token id; expected ids such as 1,2,3 or 1,2,3;4,5,6"))
    };
    let row = |row: &str| row.split(',').map(id).collect::<Result<Vec<_>, _>>();
    text.split(';').map(row).collect::<Result<_, _>>().map(TokenRows)
}

/// The first value that occurs twice.
pub(super) fn given_twice<T: Hash + Eq>(values: &[T]) -> Option<&T> {
    let mut seen = HashSet::new();
    values.iter().find(|value| !seen.insert(*value))
}

pub(super) fn positions(text: &str) -> Result<Positions, String> {
    text.parse().map_err(|e: hooklens_hooks::HookError| e.to_string())
}
