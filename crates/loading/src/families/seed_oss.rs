//! Seed-OSS: Llama with biases on queries, keys and values.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::TransformerConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "seed_oss",
    architectures: &["SeedOssForCausalLM", "SeedOssModel"],
    prefix: "model.",
    config: |json| llama_like::config(&json.defaulting(&DEFAULTS)),
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 524_288}));

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Biases {
        qkv: json.flag("attention_bias", true)?,
        output: json.flag("attention_out_bias", false)?,
        mlp: json.flag("mlp_bias", false)?,
    };
    llama_like::weights_with(config, json, Names { biases, ..Names::LLAMA })
}
