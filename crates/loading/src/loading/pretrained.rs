//! Loads a model by name: a folder, a hub id or an embedded model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::adapter::Adapter;
use super::assemble::Assembler;
use super::bos_habit;
use super::ends::{beginning, ends, without_ends};
use super::options::LoadOptions;
use crate::embedded;
use crate::families::{self, Described};
use crate::gguf::{self, GgufModel};
use crate::weight_files::{
    CROSS_ATTENTION, Quantized, Source, WeightFiles, WeightTable, embedded_file, llama2c_file, torch_file,
};
use hooklens_model::config::TransformerConfig;
use hooklens_model::device::{Placement, guarded, rounding};
use hooklens_model::encoder::{
    EncoderConfig, HookedEncoder, LoadedEncoder, OutputHeads, SentenceEmbedding, sentence_embedding_of,
};
use hooklens_model::encoder_decoder::{EncoderDecoderConfig, HookedEncoderDecoder, LoadedEncoderDecoder};
use hooklens_model::error::{ConfigError, LoadError, Result, load_errors};
use hooklens_model::model::LoadReport;
use hooklens_model::model::{HookedTransformer, LoadedDecoder, Paging, placed};
use hooklens_model::processing;
use hooklens_model::tokens::{Tokenizer, fitted_to_vocabulary, read_json, tokenizer_of_parts};

/// Loads models by name: a folder, a hub id, or an embedded model. In the prelude.
pub trait FromPretrained: Sized {
    /// Loads a pretrained model from a folder (`config.json` and safetensors files), a hub id such as `gpt2`, or
    /// `embedded:NAME`. `EleutherAI/pythia-70m@step1000` selects a branch, tag or commit of a hub model, such as a
    /// training step. Weights are loaded as published, in `f32`, on the [`default_device`](hooklens_model::device::default_device).
    ///
    /// On the CPU, `f32` weights are used directly from the memory-mapped files, which must not be overwritten or
    /// truncated while the model is in use; see [`LoadOptions::mmap`].
    ///
    /// ```
    /// # use hooklens::FromPretrained;
    /// use hooklens::HookedTransformer;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?; // or a folder, or "gpt2"
    /// assert_eq!((model.config().n_layers(), model.config().d_model()), (4, 64));
    /// let message = HookedTransformer::from_pretrained("embedded:iou").unwrap_err().to_string();
    /// assert_eq!(message, "no model at `embedded:iou`: embedded models are induction, ioi");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if there is no such model, if its files are corrupt or do not match their configuration, or if the
    /// architecture is not supported.
    fn from_pretrained(name: impl AsRef<str>) -> Result<Self> {
        Self::from_pretrained_with(name, LoadOptions::default())
    }

    /// Loads a pretrained model with options; see [`HookedTransformer::from_pretrained`].
    ///
    /// # Errors
    /// Same as [`HookedTransformer::from_pretrained`]; also fails if the processing would change the model's predictions.
    ///
    /// ```
    /// # use hooklens::FromPretrained;
    /// use hooklens::{HookedTransformer, LoadOptions, Processing};
    /// let options = LoadOptions::new().process(Processing::standard());
    /// let model = HookedTransformer::from_pretrained_with("embedded:induction", options)?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self>;
}

impl FromPretrained for HookedTransformer {
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = ModelFiles::open(name.as_ref(), true, options.mmap)?;
        let Described::Decoder(_, config) = &parts.described else { return Err(parts.other_kind().into()) };
        // Processing replaces tensors one at a time. Tensors that were copied into memory are freed as they are
        // replaced; pages of borrowed tensors would stay in memory next to the replacements.
        let borrow = processing::is_none(&options.processing);
        let placement = options.placement()?;
        let narrow = options.keeps_narrow(&placement);
        let rounding = options.checked_rounding(narrow)?;
        let blocks = narrow && processing::is_none(&options.processing);
        let ((weights, paging), mut report) = parts.read(name.as_ref(), &options, (&placement, borrow), |files| {
            let files = files.keeping(narrow, blocks).rounding_inputs(rounding);
            let weights = files.weights(config)?;
            Ok((weights, files.paging(options.memory)?))
        })?;
        report.read_each_time = paging.as_ref().map_or(0, Paging::read_each_time);
        if let Some(rounding) = rounding {
            // Embedding tables alone don't count, because they are not multiplied.
            if !weights.rounds_inputs() {
                return Err(rounding.not_applicable().into());
            }
            report.rounding.push(rounding.note().into());
        }
        let config = TransformerConfig::clone(config);
        let model = Self::from(LoadedDecoder {
            config,
            weights,
            tokenizer: parts.tokenizer,
            eos_tokens: parts.ends,
            bos_token: parts.begins,
            report,
            dtype: options.computes_in(),
            paging,
        });
        Ok(model.processed(&options.processing)?.to_devices(&placement.devices()))
    }
}

impl FromPretrained for HookedEncoder {
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = ModelFiles::open(name.as_ref(), true, options.mmap)?;
        let Described::Encoder(_, config) = &parts.described else { return Err(parts.other_kind().into()) };
        let stack = config.stack()?;
        options.check_plain("an encoder")?;
        let placement = options.placement()?;
        let (weights, report) =
            parts.read(name.as_ref(), &options, (&placement, true), |files| files.encoder(config, &stack))?;
        let weights = placed(weights, placement.first());
        let sentences = match parts.folder.as_deref() {
            Some(folder) => sentence_embedding_of(folder)?,
            None => Ok(SentenceEmbedding::default()),
        };
        let (config, tokenizer) = (EncoderConfig::clone(config), parts.tokenizer);
        Ok(Self::try_from(LoadedEncoder { config, weights, tokenizer, sentences, report })?)
    }
}

impl FromPretrained for HookedEncoderDecoder {
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = ModelFiles::open(name.as_ref(), true, options.mmap)?;
        let Described::EncoderDecoder(_, config) = &parts.described else { return Err(parts.other_kind().into()) };
        let (encodes, decodes) = (config.stack(false)?, config.stack(true)?);
        options.check_plain("an encoder-decoder")?;
        let placement = options.placement()?;
        let (weights, report) = parts.read(name.as_ref(), &options, (&placement, true), |files| {
            files.encoder_decoder(config, [&encodes, &decodes])
        })?;
        let weights = placed(weights, placement.first());
        let (config, tokenizer) = (EncoderDecoderConfig::clone(config), parts.tokenizer);
        Ok(Self::try_from(LoadedEncoderDecoder { config, weights, tokenizer, eos_tokens: parts.ends, report })?)
    }
}

/// A model's opened files and parsed configuration, before the weights are read.
struct ModelFiles {
    described: Described,
    /// Contents of `config.json`; the text model's part for a multimodal model.
    json: Value,
    /// Architecture of the whole model, if this is only its text model.
    whole: Option<String>,
    /// Folder of the files; `None` for an embedded model.
    folder: Option<PathBuf>,
    /// Weight files; `None` for a hub model that is not downloaded.
    files: Option<WeightFiles>,
    tokenizer: Option<Tokenizer>,
    /// End-of-sequence tokens named in the files.
    ends: Vec<u32>,
    /// Beginning-of-sequence token named in the files.
    begins: Option<u32>,
    /// The adapter, if the name refers to one; the other fields describe its base model.
    adapter: Option<Adapter>,
    /// llama.cpp's name for the architecture, if the model is a GGUF file.
    gguf: Option<String>,
    /// Settings in the files that are ignored, with the reason.
    ignored: Vec<String>,
}

impl ModelFiles {
    /// Opens a model's files. `weights` says whether to download a hub model's weights, `mmap` whether to map files.
    fn open(name: &str, weights: bool, mmap: bool) -> Result<Self> {
        if let Some(embedded) = name.strip_prefix("embedded:") {
            let found = embedded::find(embedded)?;
            let json: Value =
                serde_json::from_str(found.config).map_err(|source| LoadError::Json { path: name.into(), source })?;
            let files = embedded_file(name, found.weights)?;
            let described = families::read(&json)?;
            let tokenizer =
                tokenizer_of_parts(found.tokenizer.as_bytes(), std::slice::from_ref(&json), Path::new(name))?;
            let (tokenizer, ends) = (Some(tokenizer), ends(None, &json)?);
            return Ok(Self {
                begins: beginning(None, &json),
                described,
                json,
                whole: None,
                folder: None,
                files: Some(files),
                tokenizer,
                ends,
                adapter: None,
                gguf: None,
                ignored: Vec::new(),
            });
        }
        let path = Path::new(name);
        let bare = path.is_dir() && !path.join("config.json").is_file();
        if let Some(model) = if bare { gguf::in_folder(path)? } else { gguf::is_one(path).then(|| path.to_path_buf()) }
        {
            return Self::of_gguf(&model, mmap);
        }
        if path.is_file() {
            return Self::of_checkpoint(Path::new(name), mmap);
        }
        if Adapter::is_one(Path::new(name)) {
            let folder = Path::new(name);
            let adapter = Adapter::open(folder, mmap)?;
            let reason =
                "its configuration does not name a base model; load the base model with this folder as the adapter";
            let refused = |reason: &str| LoadError::Adapter { path: folder.to_path_buf(), reason: reason.into() };
            let base = adapter.base.clone().ok_or_else(|| refused(reason))?;
            // A relative base path may be relative to the training directory or to the adapter's folder.
            let beside = folder.join(&base);
            let base = match &adapter.revision {
                _ if beside.is_dir() => beside.display().to_string(),
                Some(revision) if is_hub_id(&base) && !Path::new(&base).exists() => format!("{base}@{revision}"),
                _ => base,
            };
            if Adapter::is_one(Path::new(&base)) {
                return Err(refused("its base model is an adapter too; merge and save that adapter first").into());
            }
            return Ok(Self { adapter: Some(adapter), ..Self::open(&base, weights, mmap)? });
        }
        let folder = folder(name, weights)?;
        let json = read_json(folder.join("config.json"))?;
        let quantized = Quantized::of(&json, families::architecture(&json).unwrap_or_default());
        let open = || {
            let files = WeightFiles::open_folder(&folder, mmap)?;
            match &quantized {
                Ok(Some(quantized)) => files.joined(quantized),
                _ => Ok(files),
            }
        };
        let files = match open() {
            Err(LoadError::NotFound { .. }) if !weights => None,
            files => Some(files),
        };
        // If several things are wrong with a folder, report an unsupported model before unsupported weights.
        let generation = generation(&folder)?;
        let mut ends = self::ends(generation.as_ref(), &json)?;
        let mut without = without_ends(generation.as_ref(), &json);
        let begins = beginning(generation.as_ref(), &json);
        let (json, whole) = match families::text_part(&json)? {
            Some(text) => (text, Some(families::architecture(&json)?.to_string())),
            None => (json, None),
        };
        if ends.is_empty() && generation.is_none() {
            ends = self::ends(None, &json)?;
        }
        without = without.or_else(|| without_ends(generation.as_ref(), &json));
        let begins = begins.or_else(|| beginning(None, &json));
        let there = files.as_ref().and_then(|files| files.as_ref().ok());
        let mut described = described(&json, whole.as_deref(), there)?;
        if let Some(generation) = &generation {
            described.set_generation(generation)?;
        }
        quantized?;
        let files = files.transpose()?;
        let tokenizer = tokenizer_of(&folder, &described)?;
        let mut ignored = heed_habit(&folder, &mut described)?;
        ignored.extend(without);
        let folder = Some(folder);
        Ok(Self { described, json, whole, folder, files, tokenizer, ends, begins, adapter: None, gguf: None, ignored })
    }

    /// Opens a checkpoint file with an embedded configuration (nanoGPT, llama2.c) or a `config.json` beside it.
    fn of_checkpoint(path: &Path, mmap: bool) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let own = match path.extension().and_then(|e| e.to_str()) {
            Some("pt" | "pth" | "ckpt") => torch_file::configuration(path)?,
            Some("bin") => llama2c_file::configuration(path),
            _ => None,
        };
        let json = match own {
            Some(json) => json,
            None if !folder.join("config.json").is_file() => {
                let name = path.display().to_string();
                return Err(load_errors::not_found(
                    name,
                    "the file contains no configuration, and there is no config.json beside it",
                )
                .into());
            }
            None => read_json(folder.join("config.json"))?,
        };
        let files = WeightFiles::open_with(&[path.to_path_buf()], mmap)?;
        let mut described = described(&json, None, Some(&files))?;
        let generation = generation(folder)?;
        if let Some(generation) = &generation {
            described.set_generation(generation)?;
        }
        let (ends, begins) = (ends(generation.as_ref(), &json)?, beginning(generation.as_ref(), &json));
        let (files, tokenizer) = (Some(files), tokenizer_of(folder, &described)?);
        let (ignored, folder) = (heed_habit(folder, &mut described)?, Some(folder.to_path_buf()));
        Ok(Self {
            described,
            json,
            whole: None,
            folder,
            files,
            tokenizer,
            ends,
            begins,
            adapter: None,
            gguf: None,
            ignored,
        })
    }

    /// Opens a GGUF file, which may be split into parts.
    fn of_gguf(path: &Path, mmap: bool) -> Result<Self> {
        let GgufModel { architecture, json, files, tokenizer, ends, begins, habit, mut ignored } =
            gguf::open(path, mmap)?;
        let mut described = families::read(&json)?;
        if let Described::Decoder(_, config) = &mut described {
            ignored.extend(heeded(&habit, config));
        }
        let model = Self {
            described,
            json,
            whole: None,
            folder: None,
            files: Some(files),
            tokenizer,
            ends,
            begins,
            adapter: None,
            gguf: Some(architecture),
            ignored,
        };
        let table = model.table()?;
        let unused = model.files.as_ref().map(|files| table.unused(files)).unwrap_or_default();
        // An unused tensor means that part of the model would be left out.
        match &unused[..] {
            [] => Ok(model),
            [first, ..] => {
                let count = unused.len();
                let reason = format!("it has {count} tensors that this architecture does not use, such as `{first}`");
                Err(load_errors::corrupt(path, reason).into())
            }
        }
    }

    /// Maps each weight to its tensor in the files.
    fn table(&self) -> Result<WeightTable> {
        match (&self.gguf, &self.described, &self.files) {
            (Some(architecture), Described::Decoder(_, config), Some(files)) => {
                let mut table = gguf::weights(architecture, config, files);
                // Apply the family's scales, whatever the file format.
                let own = self.described.weights_table(&self.json)?;
                own.sources.iter().for_each(|(weight, source)| table.scale(weight, source.scale));
                Ok(table)
            }
            _ => table_of(&self.described, &self.json, self.whole.as_deref(), self.files.as_ref()),
        }
    }

    /// The error for a model of a different kind than requested.
    fn other_kind(&self) -> ConfigError {
        let (kind, load) = match self.described {
            Described::Decoder(..) => ("a decoder", "HookedTransformer"),
            Described::Encoder(..) => ("an encoder", "encoder::HookedEncoder"),
            Described::EncoderDecoder(..) => ("an encoder-decoder", "encoder_decoder::HookedEncoderDecoder"),
        };
        ConfigError::OtherKind { family: self.described.family(), kind, load }
    }

    /// Reads the weights and merges the adapter. The tensors are not tracked for autodiff yet.
    fn read<W>(
        &self,
        name: &str,
        options: &LoadOptions,
        (placement, borrow): (&Placement, bool),
        read: impl FnOnce(&mut Assembler<'_>) -> Result<W, LoadError>,
    ) -> Result<(W, LoadReport)> {
        let files = self.files.as_ref().ok_or_else(|| no_weights(name))?;
        let mut table = self.table()?;
        if let (Some(path), Some(_)) = (&options.adapter, &self.adapter) {
            let reason = "the model is an adapter itself, and only one adapter can be merged".to_string();
            return Err(LoadError::Adapter { path: path.clone(), reason }.into());
        }
        let given = options.adapter.as_deref().map(|folder| Adapter::open(folder, options.mmap)).transpose()?;
        let adapter = given.as_ref().or(self.adapter.as_ref());
        let idle = adapter.map(|adapter| adapter.separate(&mut table, files)).transpose()?.unwrap_or_default();
        let placement = placement.without_autodiff();
        let assembler = Assembler::new(files, &table, options.computes_in(), borrow, &placement);
        let assembler = assembler.telling(options.progress.as_ref());
        let mut assembler = assembler.with_adapter(adapter);
        let weights = guarded(|| placement.devices(), || Ok(read(&mut assembler)?))?;
        if let Some(adapter) = adapter {
            adapter.check(assembler.changed(), &idle, &table)?;
        }
        let mut ignored = families::ignored(self.described.family(), &self.json)?;
        ignored.extend(self.ignored.iter().cloned());
        ignored.extend(idle.iter().map(|name| format!("the adapter's change to `{name}`, which the model never uses")));
        let parts = table.other_parts(files).into_iter();
        ignored.extend(parts.map(|(part, count)| match part.as_str() {
            CROSS_ATTENTION => format!("{count} tensors of {part}, since there is no encoder to attend to"),
            _ => format!("{count} tensors of {part}, which is not part of the text model"),
        }));
        let rounding =
            placement.devices().iter().filter_map(|device| rounding(device, options.computes_in())).collect();
        let mut report = assembler.report();
        (report.ignored, report.rounding) = (ignored, rounding);
        (report.name, report.family) = (name.to_string(), self.described.family());
        Ok((weights, report))
    }
}

/// Reads `generation_config.json`, if the folder has one.
fn generation(folder: &Path) -> Result<Option<Value>, LoadError> {
    let path = folder.join("generation_config.json");
    if path.is_file() { read_json(path).map(Some) } else { Ok(None) }
}

/// Reads the folder's tokenizer, fitted to the model's vocabulary size.
fn tokenizer_of(folder: &Path, described: &Described) -> Result<Option<Tokenizer>, LoadError> {
    let d_vocab = match described {
        Described::Decoder(_, config) => config.d_vocab(),
        Described::Encoder(_, config) => config.d_vocab,
        Described::EncoderDecoder(_, config) => config.d_vocab,
    };
    Ok(Tokenizer::from_folder(folder)?.map(|own| fitted_to_vocabulary(own, d_vocab)))
}

/// Applies the folder's `add_bos_token` setting to a decoder's configuration; returns ignored settings.
fn heed_habit(folder: &Path, described: &mut Described) -> Result<Vec<String>, LoadError> {
    let path = folder.join("tokenizer_config.json");
    match described {
        Described::Decoder(_, config) if path.is_file() => Ok(heeded(&read_json(path)?, config)),
        _ => Ok(Vec::new()),
    }
}

/// Applies `add_bos_token` of a tokenizer's settings to a decoder's configuration; returns ignored settings.
fn heeded(habit: &Value, config: &mut TransformerConfig) -> Vec<String> {
    let mut prepends = config.default_prepend_bos();
    let ignored = bos_habit::heed(habit, &mut prepends);
    *config = config.clone().with_default_prepend_bos(prepends);
    ignored
}

/// Interprets a configuration. An unknown architecture is read as Llama if it matches exactly: no missing or extra
/// tensors, and no setting that Llama lacks.
fn described(json: &Value, whole: Option<&str>, files: Option<&WeightFiles>) -> Result<Described> {
    let unknown = match families::read(json) {
        Err(error @ ConfigError::UnknownArchitecture { .. }) => error,
        read => return with_head(read?, json, whole, files),
    };
    let (Some(files), Some((llama, fields))) = (files, families::as_llama(json)) else { return Err(unknown.into()) };
    let table = llama.weights_table(json)?;
    let (missing, unused) = (table.missing(files), table.unused(files));
    if missing.is_empty() && unused.is_empty() && fields.is_empty() {
        return Ok(llama);
    }
    let given = families::architecture(json)?.to_string();
    Err(ConfigError::NotLlama { given, missing, unused, fields }.into())
}

/// Maps each weight to its tensor in the files; for a multimodal model, the weights of its text model.
fn table_of(
    described: &Described,
    json: &Value,
    whole: Option<&str>,
    files: Option<&WeightFiles>,
) -> Result<WeightTable> {
    let mut table = described.weights_table(json)?;
    if let (Some(whole), Some(files)) = (whole, files)
        && !families::place(&mut table, json, files)
    {
        let name = table.sources.get("embed.W_E").map(|source| source.name.clone()).unwrap_or_default();
        let reason = format!("{whole} contains no text model: `{name}` was not found under any known prefix");
        return Err(ConfigError::Malformed { reason }.into());
    }
    if let Some(files) = files {
        table.settle(files);
    }
    Ok(table)
}

/// Removes the unembedding if the files belong to a base model and contain none.
fn with_head(
    mut described: Described,
    json: &Value,
    whole: Option<&str>,
    files: Option<&WeightFiles>,
) -> Result<Described> {
    if let Some(files) = files
        && families::is_base(whole.map_or_else(|| families::architecture(json), Ok)?)
    {
        let table = table_of(&described, json, whole, Some(files))?;
        let lacking = |source: &Source| !source.tied && table.find(files, &source.name).is_none();
        if let Described::Decoder(_, config) = &mut described
            && table.sources.get("unembed.W_U").is_some_and(lacking)
        {
            **config = TransformerConfig::clone(config).with_d_vocab_out(0);
        }
    }
    Ok(described)
}

/// Returns the local folder of a model, downloading the model first if the name is a hub id.
fn folder(name: &str, weights: bool) -> Result<PathBuf, LoadError> {
    let path = Path::new(name);
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(path.to_path_buf());
        }
        let is_dump = path.join("manifest.json").is_file();
        let what = if is_dump {
            "the folder contains a dump of activations (see its manifest.json), not a model"
        } else {
            "the folder has no config.json"
        };
        return Err(load_errors::not_found(name, what));
    }
    if name == "gpt2-small" {
        return Err(load_errors::not_found(name, "TransformerLens's `gpt2-small` is `gpt2` on the hub"));
    }
    // Without a network, trying the hub would only hide the mistake.
    if embedded::embedded_models().any(|embedded| embedded == name) {
        return Err(load_errors::not_found(name, format!("there is no such folder; did you mean `embedded:{name}`?")));
    }
    let (id, revision) = name.split_once('@').unwrap_or((name, ""));
    if !is_hub_id(id) || (revision.contains('/') && !revision.starts_with("refs/")) {
        let embedded: Vec<String> = embedded::embedded_models().map(|name| format!("embedded:{name}")).collect();
        let reason = format!("there is no such folder; expected a folder, a hub id, {}", embedded.join(" or "));
        return Err(load_errors::not_found(name, reason));
    }
    #[cfg(feature = "hub")]
    return super::hub::fetch(
        name,
        if weights { super::hub::DownloadScope::Weights } else { super::hub::DownloadScope::Description },
    );
    #[cfg(not(feature = "hub"))]
    return Err(load_errors::not_found(
        name,
        format!(
            "there is no such folder, and this build cannot download {} from the hub; build with --features hub",
            if weights { "weights" } else { "a configuration" }
        ),
    ));
}

/// Whether the name could be a hub id without a revision, such as `gpt2` or `org/name`, and not a path.
fn is_hub_id(name: &str) -> bool {
    let path = name.starts_with(['.', '/']) || name.contains(':') || name.matches('/').count() > 1;
    !name.is_empty() && !path && !name.contains('@')
}

fn no_weights(name: &str) -> LoadError {
    load_errors::not_found(name, "it has no weights")
}

/// Description of a model, obtained without reading its weights.
///
/// ```
/// let info = hooklens::inspect("embedded:ioi")?;
/// assert_eq!(info.architecture, "HookedTransformer");
/// assert_eq!(info.tokenizer.map(|tokenizer| tokenizer.vocab_size()), Some(61));
/// assert!(info.weights.is_some_and(|weights| weights.parameters > 100_000));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelInfo {
    /// Name of the model family whose code loads the model.
    pub family: &'static str,
    /// Architecture named in the configuration.
    pub architecture: String,
    /// Whether this is the text model of a multimodal model, whose other parts are not read.
    pub text_part: bool,
    /// Configuration of the model.
    pub config: ModelConfig,
    /// Summary of the weight files; `None` for a hub model that is not downloaded.
    pub weights: Option<StoredWeights>,
    /// Tokenizer, if the model has one.
    pub tokenizer: Option<Tokenizer>,
}

/// Configuration of a decoder, encoder or encoder-decoder.
///
/// ```
/// use hooklens::ModelConfig;
/// let info = hooklens::inspect("embedded:ioi")?;
/// let ModelConfig::Decoder(config) = info.config else { return Ok(()) };
/// assert_eq!((config.n_layers(), config.d_vocab()), (4, 61));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// Configuration of a [`HookedTransformer`].
    Decoder(Box<TransformerConfig>),
    /// Configuration of a [`HookedEncoder`], and the heads in its files if the files are available.
    Encoder(Box<EncoderConfig>, Option<OutputHeads>),
    /// Configuration of a [`HookedEncoderDecoder`].
    EncoderDecoder(Box<EncoderDecoderConfig>),
}

/// Summary of a model's weight files.
///
/// ```
/// let stored = hooklens::inspect("embedded:ioi")?.weights;
/// let stored = stored.as_ref().map(|stored| (&stored.missing, stored.files.info("unembed.W_U")));
/// assert!(stored.is_some_and(|(missing, unembed)| missing.is_empty() && unembed.is_some()));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct StoredWeights {
    /// Number of parameters; tied weights count once.
    pub parameters: usize,
    /// Tensors that the model needs but the files lack.
    pub missing: Vec<String>,
    /// Tensors in the files that are not used, not counting parts other than the text model.
    pub unused: Vec<String>,
    /// Number of tensors in each part other than the text model, keyed by name prefix. Also counts `cross-attention` if
    /// a decoder is run without its encoder.
    pub other_parts: BTreeMap<String, usize>,
    /// The weight files.
    pub files: WeightFiles,
}

/// Describes a model without reading its weights. The weights of a hub model are not downloaded.
///
/// # Errors
/// Same as [`HookedTransformer::from_pretrained`], except for errors in the weights.
///
/// ```
/// use hooklens::ModelConfig;
/// let info = hooklens::inspect("embedded:induction")?;
/// assert!(matches!(info.config, ModelConfig::Decoder(config) if config.n_layers() == 2));
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn inspect(name: impl AsRef<str>) -> Result<ModelInfo> {
    let parts = ModelFiles::open(name.as_ref(), false, true)?;
    let table = parts.table()?;
    let family = parts.described.family();
    let config = match parts.described {
        Described::Decoder(_, config) => ModelConfig::Decoder(config),
        Described::EncoderDecoder(_, config) => ModelConfig::EncoderDecoder(config),
        Described::Encoder(_, config) => {
            let heads = parts.files.as_ref().map(|files| {
                let there = |weight| table.sources.get(weight).is_some_and(|s| table.find(files, &s.name).is_some());
                let pooler = there("pooler.W");
                OutputHeads { mlm: there("mlm_head.W"), pooler, nsp: pooler && there("nsp_head.W") }
            });
            ModelConfig::Encoder(config, heads)
        }
    };
    let weights = parts.files.map(|files| StoredWeights {
        parameters: table.parameters(&files),
        missing: table.missing(&files),
        unused: table.unused(&files),
        other_parts: table.other_parts(&files),
        files,
    });
    Ok(ModelInfo {
        family,
        architecture: match &parts.whole {
            Some(whole) => whole.clone(),
            None => families::architecture(&parts.json)?.to_string(),
        },
        text_part: parts.whole.is_some(),
        config,
        weights,
        tokenizer: parts.tokenizer,
    })
}
