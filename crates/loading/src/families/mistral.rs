//! Mistral: Llama with a window in all layers or in none.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::TransformerConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    architectures: &["MistralForCausalLM", "MistralModel", "MinistralForCausalLM", "MinistralModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"sliding_window": 4096}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let windows = llama_like::windows_by_type(json, base.n_layers(), |_| true)?;
    base.with_windows(windows)
}

/// Weight table in which no projection has a bias, regardless of the configuration.
fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Names::LLAMA)
}
