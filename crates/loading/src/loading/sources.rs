//! Where a model is read from.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::adapter::Adapter;
use hooklens_model::tokens::read_json;

/// The file or folder a model of this name is read from, and of an adapter also the places where its base may be. Not all
/// of them need be there.
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
