//! From a name to a model: folder, hub id or embedded.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::assemble::Assembler;
use super::options::LoadOptions;
use super::weight_files::WeightFiles;
use crate::config::TransformerConfig;
use crate::embedded;
use crate::error::{ConfigError, LoadError, Result};
use crate::families::{self, Family};
use crate::model::HookedTransformer;
use crate::tokens::{Tokenizer, read_json};

impl HookedTransformer {
    /// Loads a model: a folder (`config.json` beside safetensors files), a hub id such as
    /// `gpt2`, or `embedded:NAME`. Weights stay as published, in `f32`, on the CPU.
    ///
    /// # Errors
    /// No such model, files that are damaged or do not fit their configuration, an architecture
    /// that is not supported.
    pub fn from_pretrained(name: impl AsRef<str>) -> Result<Self> {
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
    pub fn from_pretrained_with(name: impl AsRef<str>, options: LoadOptions) -> Result<Self> {
        let parts = Parts::open(name.as_ref(), true)?;
        let files = parts.files.ok_or_else(|| no_weights(name.as_ref()))?;
        let table = parts.family.weights_table(&parts.config, &parts.json)?;
        // Processing replaces tensors one by one; borrowed pages would stay beside their
        // replacements, read ones are freed.
        let borrow = options.processing.is_none();
        let mut assembler = Assembler::new(&files, &table, options.dtype, borrow, &options.device);
        let weights = assembler.weights(&parts.config)?;
        let report = assembler.report();
        let model = Self::assemble(parts.config, weights, parts.tokenizer, report);
        model.processed(&options.processing)
    }
}

/// A model's files, opened and understood, weights not yet read.
struct Parts {
    family: &'static Family,
    json: Value,
    config: TransformerConfig,
    /// None for a hub model that is not downloaded.
    files: Option<WeightFiles>,
    tokenizer: Option<Tokenizer>,
}

impl Parts {
    /// `weights` tells whether those of a hub model are to be downloaded.
    fn open(name: &str, weights: bool) -> Result<Self> {
        if let Some(embedded) = name.strip_prefix("embedded:") {
            let found = embedded::find(embedded)?;
            let json: Value =
                serde_json::from_str(found.config).map_err(|e| ConfigError::Malformed { reason: e.to_string() })?;
            let (family, config) = families::read(&json)?;
            let files = WeightFiles::from_static(name, found.weights)?;
            let tokenizer =
                Tokenizer::from_parts(found.tokenizer.as_bytes(), std::slice::from_ref(&json), Path::new(name))?;
            return Ok(Self { family, json, config, files: Some(files), tokenizer: Some(tokenizer) });
        }
        let folder = folder(name, weights)?;
        let json = read_json(folder.join("config.json"))?;
        let (family, config) = families::read(&json)?;
        let files = match WeightFiles::open_folder(&folder) {
            Err(LoadError::NotFound { .. }) if !weights && !Path::new(name).is_dir() => None,
            files => Some(files?),
        };
        let tokenizer = Tokenizer::from_folder(&folder)?;
        Ok(Self { family, json, config, files, tokenizer })
    }
}

/// The folder of a model on disk, fetched from the hub first if it is a hub id.
fn folder(name: &str, weights: bool) -> Result<PathBuf, LoadError> {
    let path = Path::new(name);
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(path.to_path_buf());
        }
        return Err(LoadError::NotFound { name: name.to_string(), reason: "the folder has no config.json".into() });
    }
    let looks_like_a_path =
        path.is_absolute() || name.starts_with('.') || name.matches('/').count() > 1 || name.is_empty();
    if looks_like_a_path {
        return Err(LoadError::NotFound { name: name.to_string(), reason: "there is no such folder".into() });
    }
    #[cfg(feature = "hub")]
    return super::hub::fetch(name, if weights { super::hub::Want::Weights } else { super::hub::Want::Description });
    #[cfg(not(feature = "hub"))]
    return Err(LoadError::NotFound {
        name: name.to_string(),
        reason: format!(
            "there is no such folder, and this build has no hub access (feature `hub`) to fetch {} from",
            if weights { "weights" } else { "a configuration" }
        ),
    });
}

fn no_weights(name: &str) -> LoadError {
    LoadError::NotFound { name: name.to_string(), reason: "it has no weights".into() }
}

/// What a model is, without its weights being read.
#[derive(Debug)]
pub struct ModelInfo {
    /// The family that reads it.
    pub family: &'static str,
    /// The architecture its configuration names.
    pub architecture: String,
    /// Its shape and choices.
    pub config: TransformerConfig,
    /// Its weight files, with what they hold; none for a hub model that is not downloaded.
    pub weights: Option<StoredWeights>,
    /// Whether it has a tokenizer.
    pub has_tokenizer: bool,
}

/// What a model's files hold.
#[derive(Debug)]
pub struct StoredWeights {
    /// Number of weights; tied ones count once.
    pub parameters: usize,
    /// Tensors the model needs and the files lack.
    pub missing: Vec<String>,
    /// Tensors of the files that no weight is made from.
    pub unused: Vec<String>,
    /// The files.
    pub files: WeightFiles,
}

/// Looks at a model without reading its weights; those of a hub model are not downloaded.
///
/// # Errors
/// As [`HookedTransformer::from_pretrained`], weights apart.
///
/// ```
/// let info = hooklens::inspect("embedded:induction")?;
/// assert_eq!(info.config.n_layers, 2);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn inspect(name: impl AsRef<str>) -> Result<ModelInfo> {
    let parts = Parts::open(name.as_ref(), false)?;
    let table = parts.family.weights_table(&parts.config, &parts.json)?;
    let weights = parts.files.map(|files| StoredWeights {
        parameters: table.parameters(&files),
        missing: table.missing(&files),
        unused: table.unused(&files),
        files,
    });
    Ok(ModelInfo {
        family: parts.family.name,
        architecture: families::architecture(&parts.json)?.to_string(),
        config: parts.config,
        weights,
        has_tokenizer: parts.tokenizer.is_some(),
    })
}
