//! Mistral: Llama with a window, in all layers or in none.

use super::hf_config::HfConfig;
use super::llama_like::Biases;
use super::{Family, llama_like};
use crate::config::{TransformerConfig, Window};
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
    let windows = match json.maybe_size("sliding_window")? {
        Some(window) => vec![Some(Window::Sliding(window)); base.n_layers],
        None => Vec::new(),
    };
    Ok(TransformerConfig { windows, ..base })
}

/// No projection has a bias, whatever the configuration says of it.
fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Biases { qkv: false, output: false, mlp: false })
}
