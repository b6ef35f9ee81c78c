//! Models that are part of the program.

use crate::error::LoadError;

/// A model compiled in: its configuration, weights and tokenizer.
pub(crate) struct EmbeddedModel {
    name: &'static str,
    pub(crate) config: &'static str,
    pub(crate) weights: &'static [u8],
    pub(crate) tokenizer: &'static str,
}

static MODELS: &[EmbeddedModel] = &[EmbeddedModel {
    name: "induction",
    config: include_str!("induction/config.json"),
    weights: include_bytes!("induction/model.safetensors"),
    tokenizer: include_str!("induction/tokenizer.json"),
}];

/// Names of the embedded models.
pub fn embedded_models() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|model| model.name)
}

pub(crate) fn find(name: &str) -> Result<&'static EmbeddedModel, LoadError> {
    MODELS.iter().find(|model| model.name == name).ok_or_else(|| LoadError::NotFound {
        name: format!("embedded:{name}"),
        reason: format!("embedded models are {}", embedded_models().collect::<Vec<_>>().join(", ")),
    })
}
