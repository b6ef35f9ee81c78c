//! Paths that a model is read from.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::adapter::Adapter;
use hooklens_model::tokens::read_json;

/// The file or folder that a model is read from, plus possible paths of the base model if `name` is an adapter. Some of
/// these paths may not exist.
pub fn sources(name: &str) -> Vec<PathBuf> {
    let mut sources = vec![PathBuf::from(name)];
    if Adapter::is_one(Path::new(name))
        && let Ok(json) = read_json(Path::new(name).join("adapter_config.json"))
        && let Some(base) = json.get("base_model_name_or_path").and_then(Value::as_str)
    {
        sources.extend([Path::new(name).join(base), PathBuf::from(base)]);
    }
    sources
}
