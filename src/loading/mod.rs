//! Loading: from folders, hub ids and checkpoints to weights.

mod adapter;
mod assemble;
mod assemble_encoder;
mod assemble_encoder_decoder;
mod bos_habit;
mod ends;
mod fingerprint;
#[cfg(feature = "hub")]
mod hub;
mod options;
mod pretrained;
mod save;
#[cfg(feature = "cli")]
mod sources;

/// The configurations of a sentence encoder's modules, as its `modules.json` names them.
#[cfg(feature = "hub")]
fn sentence_modules(folder: &std::path::Path) -> Vec<String> {
    let json = crate::tokens::read_json(folder.join("modules.json")).unwrap_or_default();
    let paths = json.as_array().into_iter().flatten().filter_map(|module| module.get("path")?.as_str());
    // Names of folders within, nothing that leads elsewhere.
    let inside = |path: &&str| !path.is_empty() && !path.contains(['/', '\\', ':']) && *path != "..";
    paths.filter(inside).map(|path| format!("{path}/config.json")).collect()
}

#[cfg(all(feature = "hub", feature = "cli"))]
pub(crate) use hub::cache_folder;
pub use options::LoadOptions;
#[cfg(feature = "cli")]
pub(crate) use sources::sources;

pub use pretrained::{ModelConfig, ModelInfo, StoredWeights, inspect};
