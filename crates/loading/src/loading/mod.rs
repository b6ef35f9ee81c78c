//! Loads models from folders, hub ids and checkpoints.

mod adapter;
mod assemble;
mod assemble_encoder;
mod assemble_encoder_decoder;
mod bos_habit;
mod compute_type;
mod ends;
#[cfg(feature = "hub")]
mod hub;
mod options;
mod pretrained;
mod save;
mod sources;

/// Paths of the configuration files of the modules that a sentence encoder's `modules.json` lists.
#[cfg(feature = "hub")]
fn sentence_modules(folder: &std::path::Path) -> Vec<String> {
    let json = hooklens_model::tokens::read_json(folder.join("modules.json")).unwrap_or_default();
    let paths = json.as_array().into_iter().flatten().filter_map(|module| module.get("path")?.as_str());
    // Accept only direct subfolders, not paths that lead elsewhere.
    let inside = |path: &&str| !path.is_empty() && !path.contains(['/', '\\', ':']) && *path != "..";
    paths.filter(inside).map(|path| format!("{path}/config.json")).collect()
}

pub use compute_type::ComputeType;
#[cfg(feature = "hub")]
pub use hub::cache_folder;
pub use options::LoadOptions;
pub use sources::sources;

pub use pretrained::{FromPretrained, ModelConfig, ModelInfo, StoredWeights, inspect};
pub use save::SavePretrained;
