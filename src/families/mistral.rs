//! Mistral: Llama with a window, in all layers or in none.

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use crate::config::TransformerConfig;
use crate::error::ConfigError;
use crate::loading::WeightTable;

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    architectures: &["MistralForCausalLM", "MistralModel"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = llama_like::one_window(json, base.n_layers)?;
    Ok(TransformerConfig { windows, ..base })
}

/// No projection has a bias, whatever the configuration says of it.
fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Names::LLAMA)
}
