//! From a name to a model: folder, hub id or embedded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::adapter::Adapter;
use super::assemble::Assembler;
use super::bos_habit;
use super::ends::{beginning, ends};
use super::options::LoadOptions;
use crate::embedded;
use crate::families::{self, Described};
use crate::gguf::{self, GgufModel};
use crate::weight_files::{CROSS_ATTENTION, Quantized, Source, WeightFiles, WeightTable, llama2c_file, torch_file};
use hooklens_model::config::TransformerConfig;
use hooklens_model::device::{Placement, guarded, rounding};
use hooklens_model::encoder::{EncoderConfig, HookedEncoder, OutputHeads, SentenceEmbedding};
use hooklens_model::encoder_decoder::{EncoderDecoderConfig, HookedEncoderDecoder};
use hooklens_model::error::{ConfigError, LoadError, Result};
use hooklens_model::model::LoadReport;
use hooklens_model::model::{HookedTransformer, Paging, placed};
use hooklens_model::tokens::{Tokenizer, read_json};

/// Loading of models by name: a folder, a hub id, or an embedded model. Part of the prelude.
pub trait FromPretrained: Sized {
    /// Loads a model: a folder (`config.json` beside safetensors files), a hub id such as
    /// `gpt2`, or `embedded:NAME`. `EleutherAI/pythia-70m@step1000` is a hub model as of a branch, tag or commit,
    /// such as a step of its training. Weights stay as published, in `f32`, on the
    /// [`default_device`](crate::default_device).
    ///
    /// On the CPU, weights that the files hold in `f32` are used where they lie in the mapped files: those must not be
    /// overwritten or truncated while the model is in use; see [`LoadOptions::mmap`].
    ///
    /// ```
    /// use hooklens::HookedTransformer;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?; // or a folder, or "gpt2"
    /// assert_eq!((model.config().n_layers, model.config().d_model), (4, 64));
    /// let told = HookedTransformer::from_pretrained("embedded:iou").unwrap_err().to_string();
    /// assert_eq!(told, "no model at `embedded:iou`: embedded models are induction, ioi");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// No such model, files that are damaged or do not fit their configuration, an architecture
    /// that is not supported.
    fn from_pretrained(name: impl AsRef<str>) -> Result<Self> {
        Self::from_pretrained_with(name, LoadOptions::default())
    }

    /// [`HookedTransformer::from_pretrained`] with choices of its own.
    ///
    /// # Errors
    /// As [`HookedTransformer::from_pretrained`]; also processing that would change the model.
    ///
    /// ```
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
        // Processing replaces tensors one by one; borrowed pages would stay beside their
        // replacements, read ones are freed.
        let borrow = options.processing.is_none();
        let placement = options.placement()?;
        let narrow = options.keeps_narrow(&placement);
        let blocks = narrow && options.processing.is_none();
        let ((weights, paging), mut report) = parts.read(name.as_ref(), &options, (&placement, borrow), |files| {
            let weights = files.keeping(narrow, blocks).weights(config)?;
            Ok((weights, files.paging(options.memory)?))
        })?;
        report.name = name.as_ref().into();
        report.read_each_time = paging.as_ref().map_or(0, Paging::read_each_time);
        let config = TransformerConfig::clone(config);
        let model = Self::assemble(config, weights, parts.tokenizer, report, options.computes_in());
        let model = model.with_eos_tokens(parts.ends).with_bos_token(parts.begins);
        Ok(model.processed(&options.processing)?.to_devices(&placement.devices()).paged(paging))
    }
}

impl FromPretrained for HookedEncoder {
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = ModelFiles::open(name.as_ref(), true, options.mmap)?;
        let Described::Encoder(_, config) = &parts.described else { return Err(parts.other_kind().into()) };
        options.check_plain("an encoder")?;
        let placement = options.placement()?;
        let (weights, report) =
            parts.read(name.as_ref(), &options, (&placement, true), |files| files.encoder(config))?;
        let weights = placed(weights, placement.first());
        let sentences = match parts.folder.as_deref() {
            Some(folder) => SentenceEmbedding::of_folder(folder)?,
            None => Ok(SentenceEmbedding::default()),
        };
        Ok(Self::assemble(EncoderConfig::clone(config), weights, parts.tokenizer, sentences, report))
    }
}

impl FromPretrained for HookedEncoderDecoder {
    fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = ModelFiles::open(name.as_ref(), true, options.mmap)?;
        let Described::EncoderDecoder(_, config) = &parts.described else { return Err(parts.other_kind().into()) };
        options.check_plain("an encoder-decoder")?;
        let placement = options.placement()?;
        let (weights, report) =
            parts.read(name.as_ref(), &options, (&placement, true), |files| files.encoder_decoder(config))?;
        let weights = placed(weights, placement.first());
        let model = Self::assemble(EncoderDecoderConfig::clone(config), weights, parts.tokenizer, report);
        Ok(model.with_eos_tokens(parts.ends))
    }
}

/// A model's files, opened and understood, weights not yet read.
struct ModelFiles {
    described: Described,
    /// The `config.json`, of a model of several parts that of its text model.
    json: Value,
    /// The architecture of the whole, if it has several parts.
    whole: Option<String>,
    /// Where its files are; none for an embedded model.
    folder: Option<PathBuf>,
    /// None for a hub model that is not downloaded.
    files: Option<WeightFiles>,
    tokenizer: Option<Tokenizer>,
    /// The tokens that end a text, as the files say.
    ends: Vec<u32>,
    /// The token that begins a text, as the files say.
    begins: Option<u32>,
    /// The adapter a name stands for, with the model it was trained on.
    adapter: Option<Adapter>,
    /// llama.cpp's name of the architecture, if it is one GGUF file.
    gguf: Option<String>,
    /// What of the files is not used, with the reason.
    ignored: Vec<String>,
}

impl ModelFiles {
    /// `weights` tells whether those of a hub model are to be downloaded, `mmap` whether files are mapped.
    fn open(name: &str, weights: bool, mmap: bool) -> Result<Self> {
        if let Some(embedded) = name.strip_prefix("embedded:") {
            let found = embedded::find(embedded)?;
            let json: Value =
                serde_json::from_str(found.config).map_err(|source| LoadError::Json { path: name.into(), source })?;
            let files = WeightFiles::from_static(name, found.weights)?;
            let described = families::read(&json)?;
            let tokenizer =
                Tokenizer::from_parts(found.tokenizer.as_bytes(), std::slice::from_ref(&json), Path::new(name))?;
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
            let reason = "its configuration names no base model; load that, with this folder as its adapter";
            let refused = |reason: &str| LoadError::Adapter { path: folder.to_path_buf(), reason: reason.into() };
            let base = adapter.base.clone().ok_or_else(|| refused(reason))?;
            // A path in it is relative to where the adapter was trained, or to the adapter.
            let beside = folder.join(&base);
            let base = match &adapter.revision {
                _ if beside.is_dir() => beside.display().to_string(),
                Some(revision) if is_hub_id(&base) && !Path::new(&base).exists() => format!("{base}@{revision}"),
                _ => base,
            };
            if Adapter::is_one(Path::new(&base)) {
                return Err(refused("its base is an adapter too; merge that into a model of its own first").into());
            }
            return Ok(Self { adapter: Some(adapter), ..Self::open(&base, weights, mmap)? });
        }
        let folder = folder(name, weights)?;
        let json = read_json(folder.join("config.json"))?;
        let quantized = Quantized::of(&json, families::architecture(&json).unwrap_or_default());
        let open = || {
            let files = WeightFiles::open_folder_with(&folder, mmap)?;
            match &quantized {
                Ok(Some(quantized)) => files.joined(quantized),
                _ => Ok(files),
            }
        };
        let files = match open() {
            Err(LoadError::NotFound { .. }) if !weights => None,
            files => Some(files),
        };
        // Of a folder with two things wrong, what model it is says more than how its weights are kept.
        let generation = generation(&folder)?;
        let mut ends = self::ends(generation.as_ref(), &json)?;
        let begins = beginning(generation.as_ref(), &json);
        let (json, whole) = match families::text_part(&json)? {
            Some(text) => (text, Some(families::architecture(&json)?.to_string())),
            None => (json, None),
        };
        if ends.is_empty() {
            ends = self::ends(None, &json)?;
        }
        let begins = begins.or_else(|| beginning(None, &json));
        let there = files.as_ref().and_then(|files| files.as_ref().ok());
        let mut described = described(&json, whole.as_deref(), there)?;
        if let Some(generation) = &generation {
            described.set_generation(generation)?;
        }
        quantized?;
        let files = files.transpose()?;
        let tokenizer = tokenizer_of(&folder, &described)?;
        let (ignored, folder) = (heed_habit(&folder, &mut described)?, Some(folder));
        Ok(Self { described, json, whole, folder, files, tokenizer, ends, begins, adapter: None, gguf: None, ignored })
    }

    /// A file that carries its own configuration (nanoGPT's and llama2.c's), or has one beside it.
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
                return Err(
                    LoadError::not_found(name, "the file has no configuration, nor a config.json beside it").into()
                );
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

    /// A GGUF file, or the parts of one.
    fn of_gguf(path: &Path, mmap: bool) -> Result<Self> {
        let GgufModel { architecture, json, files, tokenizer, ends, begins, habit, mut ignored } =
            gguf::open(path, mmap)?;
        let mut described = families::read(&json)?;
        if let Described::Decoder(_, config) = &mut described {
            ignored.extend(bos_habit::heed(&habit, &mut config.default_prepend_bos));
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
        // A tensor that no weight is made of is a part of the model that would be left out.
        match &unused[..] {
            [] => Ok(model),
            [first, ..] => {
                let count = unused.len();
                let reason =
                    format!("it has {count} tensors that no weight of this model is made of, such as `{first}`");
                Err(LoadError::corrupt(path, reason).into())
            }
        }
    }

    /// Where the files hold each weight.
    fn table(&self) -> Result<WeightTable> {
        match (&self.gguf, &self.described, &self.files) {
            (Some(architecture), Described::Decoder(_, config), Some(files)) => {
                let mut table = gguf::weights(architecture, config, files);
                // What a family multiplies weights by, it does wherever they come from.
                let own = self.described.weights_table(&self.json)?;
                own.sources.iter().for_each(|(weight, source)| table.scale(weight, source.scale));
                Ok(table)
            }
            _ => table_of(&self.described, &self.json, self.whole.as_deref(), self.files.as_ref()),
        }
    }

    /// The error for a model of another kind than the one asked for.
    fn other_kind(&self) -> ConfigError {
        let (kind, load) = match self.described {
            Described::Decoder(..) => ("a decoder", "HookedTransformer"),
            Described::Encoder(..) => ("an encoder", "encoder::HookedEncoder"),
            Described::EncoderDecoder(..) => ("an encoder with a decoder", "encoder_decoder::HookedEncoderDecoder"),
        };
        ConfigError::OtherKind { family: self.described.family(), kind, load }
    }

    /// Reads the weights, an adapter merged: plain tensors, whether they are to be tracked there or not.
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
            let reason = "the model is named by an adapter already, and one is merged at a time".to_string();
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
        ignored.extend(idle.iter().map(|name| format!("the adapter's change of `{name}`, which the model never uses")));
        let parts = table.other_parts(files).into_iter();
        ignored.extend(parts.map(|(part, count)| match part.as_str() {
            CROSS_ATTENTION => format!("{count} tensors of {part}, which has no encoder to read"),
            _ => format!("{count} tensors of {part}, a part other than the text model"),
        }));
        let rounding =
            placement.devices().iter().filter_map(|device| rounding(device, options.computes_in())).collect();
        let mut report = assembler.report();
        (report.ignored, report.rounding) = (ignored, rounding);
        Ok((weights, report))
    }
}

/// The `generation_config.json` of a folder, if there is one.
fn generation(folder: &Path) -> Result<Option<Value>, LoadError> {
    let path = folder.join("generation_config.json");
    if path.is_file() { read_json(path).map(Some) } else { Ok(None) }
}

/// The tokenizer of a folder, for this model.
fn tokenizer_of(folder: &Path, described: &Described) -> Result<Option<Tokenizer>, LoadError> {
    let d_vocab = match described {
        Described::Decoder(_, config) => config.d_vocab,
        Described::Encoder(_, config) => config.d_vocab,
        Described::EncoderDecoder(_, config) => config.d_vocab,
    };
    Ok(Tokenizer::from_folder(folder)?.map(|own| own.fitting(d_vocab)))
}

/// Takes from a folder's files whether a decoder's texts get a beginning-of-sequence token; gives what is not heeded.
fn heed_habit(folder: &Path, described: &mut Described) -> Result<Vec<String>, LoadError> {
    let path = folder.join("tokenizer_config.json");
    match described {
        Described::Decoder(_, config) if path.is_file() => {
            Ok(bos_habit::heed(&read_json(path)?, &mut config.default_prepend_bos))
        }
        _ => Ok(Vec::new()),
    }
}

/// What a configuration describes. An architecture that no family covers is Llama's under another name if
/// everything about it is: no tensor too many or too few, and no setting that Llama doesn't have.
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

/// Where the files hold each weight, of a model of several parts each of its text model.
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
        let reason = format!("{whole} holds no text model: `{name}` is there under no prefix that is known");
        return Err(ConfigError::Malformed { reason }.into());
    }
    if let Some(files) = files {
        table.settle(files);
    }
    Ok(table)
}

/// The same without an unembedding where the files are a base model's and hold none.
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
            config.d_vocab_out = 0;
        }
    }
    Ok(described)
}

/// The folder of a model on disk, fetched from the hub first if it is a hub id.
fn folder(name: &str, weights: bool) -> Result<PathBuf, LoadError> {
    let path = Path::new(name);
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(path.to_path_buf());
        }
        return Err(LoadError::not_found(name, "the folder has no config.json"));
    }
    let (id, revision) = name.split_once('@').unwrap_or((name, ""));
    if !is_hub_id(id) || (revision.contains('/') && !revision.starts_with("refs/")) {
        return Err(LoadError::not_found(name, "there is no such folder"));
    }
    #[cfg(feature = "hub")]
    return super::hub::fetch(name, if weights { super::hub::Want::Weights } else { super::hub::Want::Description });
    #[cfg(not(feature = "hub"))]
    return Err(LoadError::not_found(
        name,
        format!(
            "there is no such folder, and this build has no hub access (feature `hub`) to fetch {} from",
            if weights { "weights" } else { "a configuration" }
        ),
    ));
}

/// Whether this may be a hub id, without a revision, and is no path: `gpt2`, `org/name`.
fn is_hub_id(name: &str) -> bool {
    let path = name.starts_with(['.', '/']) || name.contains(':') || name.matches('/').count() > 1;
    !name.is_empty() && !path && !name.contains('@')
}

fn no_weights(name: &str) -> LoadError {
    LoadError::not_found(name, "it has no weights")
}

/// A description of a model, made without reading its weights.
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
    /// The family that reads it.
    pub family: &'static str,
    /// The architecture its configuration names.
    pub architecture: String,
    /// Whether it is the text model of a model of several parts, of which the others are not read.
    pub text_part: bool,
    /// Its shape and choices.
    pub config: ModelConfig,
    /// Its weight files, with what they hold; none for a hub model that is not downloaded.
    pub weights: Option<StoredWeights>,
    /// Its tokenizer, if it has one.
    pub tokenizer: Option<Tokenizer>,
}

/// Shape and choices of a model, of whatever kind.
///
/// ```
/// use hooklens::ModelConfig;
/// let info = hooklens::inspect("embedded:ioi")?;
/// assert_eq!(info.config.d_vocab(), 61);
/// let ModelConfig::Decoder(config) = info.config else { return Ok(()) };
/// assert_eq!((config.n_layers, config.n_heads), (4, 4));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// Of a [`HookedTransformer`].
    Decoder(Box<TransformerConfig>),
    /// Of a [`HookedEncoder`]; which heads its files hold, if they are there.
    Encoder(Box<EncoderConfig>, Option<OutputHeads>),
    /// Of a [`HookedEncoderDecoder`].
    EncoderDecoder(Box<EncoderDecoderConfig>),
}

impl ModelConfig {
    /// Tokens of the vocabulary.
    pub fn d_vocab(&self) -> usize {
        match self {
            ModelConfig::Decoder(c) => c.d_vocab,
            ModelConfig::Encoder(c, _) => c.d_vocab,
            ModelConfig::EncoderDecoder(c) => c.d_decoder_vocab,
        }
    }
}

/// What a model's files hold.
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
    /// Number of weights; tied ones count once.
    pub parameters: usize,
    /// Tensors the model needs and the files lack.
    pub missing: Vec<String>,
    /// Tensors of the files that no weight is made from, those of other parts than the text model left out.
    pub unused: Vec<String>,
    /// Number of tensors of each part other than the text model, by the beginnings of their names, and of
    /// `cross-attention` where a decoder is run without an encoder.
    pub other_parts: BTreeMap<String, usize>,
    /// The files.
    pub files: WeightFiles,
}

/// Looks at a model without reading its weights; those of a hub model are not downloaded.
///
/// # Errors
/// As [`HookedTransformer::from_pretrained`], weights apart.
///
/// ```
/// use hooklens::ModelConfig;
/// let info = hooklens::inspect("embedded:induction")?;
/// assert!(matches!(info.config, ModelConfig::Decoder(config) if config.n_layers == 2));
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
