//! GGUF models, as run by llama.cpp: configuration, weights and tokenizer in one file.

mod config;
mod fields;
mod tokenizer;
mod weights;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::weight_files::{WeightFiles, gguf_file};
use fields::Fields;
use hooklens_model::error::{LoadError, Result, load_errors};
use hooklens_model::tokens::{Tokenizer, tokenizer_of_parts};

pub(crate) use weights::weights;

/// A model's files and metadata, before the weights are read.
pub(crate) struct GgufModel {
    /// llama.cpp's name for the architecture.
    pub(crate) architecture: String,
    /// Configuration in Hugging Face's format.
    pub(crate) json: Value,
    pub(crate) files: WeightFiles,
    pub(crate) tokenizer: Option<Tokenizer>,
    /// End-of-sequence tokens.
    pub(crate) ends: Vec<u32>,
    /// Beginning-of-sequence token.
    pub(crate) begins: Option<u32>,
    /// Settings for adding special tokens to texts, in the format of Hugging Face's `tokenizer_config.json`.
    pub(crate) habit: Value,
    /// Settings in the file that are ignored, with the reason.
    pub(crate) ignored: Vec<String>,
}

/// Whether a path has the extension of a GGUF file.
pub(crate) fn is_one(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf")
}

/// Path of the only GGUF model in a folder, or of its first part if it is split; `None` if there is no model.
///
/// # Errors
/// [`LoadError::NotFound`] if there are several models.
pub(crate) fn in_folder(folder: &Path) -> Result<Option<PathBuf>, LoadError> {
    let entries = std::fs::read_dir(folder).map_err(load_errors::cant_read(folder))?;
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_one(path)).collect();
    found.sort();
    let Some(first) = found.first() else { return Ok(None) };
    if found.len() == 1 || gguf_file::parts(first)?.len() == found.len() {
        return Ok(Some(found.swap_remove(0)));
    }
    let names = found.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
    let reason = format!(
        "the folder contains several GGUF files; pass the path of one: {}",
        names.collect::<Vec<_>>().join(", ")
    );
    Err(load_errors::not_found(folder.display().to_string(), reason))
}

/// Opens the file, or all parts of a split model.
///
/// # Errors
/// Fails if a file is invalid, the architecture is not supported, or a tensor is not used by any weight.
pub(crate) fn open(path: &Path, mmap: bool) -> Result<GgufModel> {
    let parts = gguf_file::parts(path)?;
    let described = gguf_file::fields(parts.first().map_or(path, PathBuf::as_path))?;
    let files = WeightFiles::open_with(&parts, mmap)?;
    let fields = Fields::of(&described)?;
    let (architecture, json) = (fields.architecture().to_string(), config::of(&fields, &files)?);
    let (tokenizer, ignored) = match tokenizer::of(&described) {
        Ok((json, side)) => {
            let text = json.to_string();
            (Some(tokenizer_of_parts(text.as_bytes(), &[side], path)?), Vec::new())
        }
        Err(reason) => (None, vec![format!("the tokenizer: {reason}")]),
    };
    let (ends, begins) = (tokenizer::ends(&described), tokenizer::beginning(&described));
    let habit = tokenizer::habit(&described, &architecture);
    Ok(GgufModel { architecture, json, files, tokenizer, ends, begins, habit, ignored })
}
