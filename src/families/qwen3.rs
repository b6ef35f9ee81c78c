//! Qwen 3: Llama whose queries and keys are normalised head by head.

use super::hf_config::HfConfig;
use super::llama_like::{BEFORE_AND_QK, Names};
use super::{Family, llama_like, qwen2};
use crate::config::TransformerConfig;
use crate::error::ConfigError;
use crate::loading::WeightTable;

pub(super) static FAMILY: Family =
    Family { name: "qwen3", architectures: &["Qwen3ForCausalLM", "Qwen3Model"], prefix: "model.", config, weights };

pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = qwen2::windows(json, base.n_layers)?;
    Ok(TransformerConfig { qk_norm: true, windows, default_prepend_bos: false, ..base })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let names = Names { norms: BEFORE_AND_QK, ..Names::LLAMA }.with_biases_of(json)?;
    llama_like::weights_with(config, json, names)
}
