//! Mixtral: Mistral with a mixture of experts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Layers, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mixtral",
    architectures: &["MixtralForCausalLM", "MixtralModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"rope_theta": 1e6}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let windows = llama_like::one_window(json, base.n_layers())?;
    let experts = llama_like::experts(json, "num_local_experts", true)?;
    base.with_mixture(experts).with_eps(json.number("rms_norm_eps", 1e-5)?).with_windows(windows)
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let (router, folder) = ("block_sparse_moe.gate", "block_sparse_moe.experts");
    let mlp = MlpNames::Experts { router, folder, parts: ["w3", "w1", "w2"] };
    llama_like::weights_with(config, json, Names { mlp, ..Names::LLAMA })
}
