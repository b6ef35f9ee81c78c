//! GLM 4.5 and later with mixtures of experts: DeepSeek V3's experts, with half of each head rotated.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "glm4_moe",
    architectures: &["Glm4MoeForCausalLM", "Glm4MoeModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config_turning(json, 0.5)?;
    let base =
        base.with_qk_norm(json.flag("use_qk_norm", false)?.then_some(QkNorm::HEADS)).with_default_prepend_bos(false);
    let first = json.size("first_k_dense_replace")?;
    Ok(mixtures::with_experts(base, mixtures::deepseek(json)?, |layer| layer < first))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Biases { qkv: json.flag("attention_bias", false)?, output: false, mlp: false };
    let names = Names { mlp: mixtures::EXPERTS, biases, ..Names::LLAMA };
    let mut table = llama_like::weights_with(config, json, names)?;
    mixtures::add_shared(&mut table, config, "mlp.shared_experts", Some("mlp.gate.e_score_correction_bias"));
    Ok(table)
}
