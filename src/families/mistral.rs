//! Mistral: Llama with a window, in all layers or in none.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::config::TransformerConfig;
use crate::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    architectures: &["MistralForCausalLM", "MistralModel"],
    prefix: "model.",
    tied: false,
    config,
    weights: llama_like::weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = match json.maybe_size("sliding_window")? {
        Some(window) => vec![Some(window); base.n_layers],
        None => Vec::new(),
    };
    Ok(TransformerConfig { windows, ..base })
}
