//! Helium and ERNIE 4.5: Llama with rotary embedding of adjacent pairs.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use hooklens_model::config::TransformerConfig;
use hooklens_model::error::ConfigError;

pub(super) static HELIUM: Family = Family {
    name: "helium",
    architectures: &["HeliumForCausalLM", "HeliumModel"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&HELIUMS)),
    weights: |config, json| {
        let biases =
            Biases { qkv: json.flag("attention_bias", false)?, output: false, mlp: json.flag("mlp_bias", false)? };
        llama_like::weights_with(config, json, Names { biases, ..Names::LLAMA })
    },
};

pub(super) static ERNIE: Family = Family {
    name: "ernie4_5",
    architectures: &["Ernie4_5ForCausalLM", "Ernie4_5Model"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&ERNIES)),
    weights: |config, json| {
        let biased = json.flag("use_bias", false)?;
        let biases = Biases { qkv: biased, output: biased, mlp: biased };
        llama_like::weights_with(config, json, Names { biases, tied: true, ..Names::LLAMA })
    },
};

/// Hugging Face's defaults for Helium.
static HELIUMS: LazyLock<Value> = LazyLock::new(
    || json!({"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5, "num_key_value_heads": 20, "max_position_embeddings": 4096}),
);

/// Hugging Face's defaults for ERNIE 4.5.
static ERNIES: LazyLock<Value> = LazyLock::new(
    || json!({"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "num_key_value_heads": 2, "max_position_embeddings": 131_072}),
);

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    Ok(llama_like::of_neighbors(llama_like::config(json)?))
}
