//! Qwen 1.5 and 2 with a mixture of experts and a shared expert with a learned gate.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like, mixtures, qwen3_moe};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, Layers, SharedExpert, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "qwen2_moe",
    architectures: &["Qwen2MoeForCausalLM", "Qwen2MoeModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_key_value_heads": 16, "max_position_embeddings": 32768
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    // Which layers have a window depends on the version of transformers.
    if json.flag("use_sliding_window", false)? {
        return Err(json.unsupported("use_sliding_window"));
    }
    let shared = SharedExpert { d_mlp: json.size("shared_expert_intermediate_size")?, gated: true };
    let (experts, d_mlp) = qwen3_moe::experts(json)?;
    let base = llama_like::config(json)?;
    let dense = qwen3_moe::dense_layers(json)?;
    let experts = Experts { shared: Some(shared), ..experts };
    Ok(mixtures::with_experts(base, (experts, d_mlp), dense).with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Biases { qkv: json.flag("qkv_bias", true)?, output: false, mlp: false };
    let names = Names { mlp: mixtures::EXPERTS, biases, ..Names::LLAMA };
    let mut table = llama_like::weights_with(config, json, names)?;
    mixtures::add_shared(&mut table, config, "mlp.shared_expert", None);
    for layer in (0..config.n_layers()).filter(|layer| config.experts_of(*layer).is_some()) {
        let from = format!("model.layers.{layer}.mlp.shared_expert_gate");
        table.linear(&format!("blocks.{layer}.mlp.shared.W_share"), &from, false);
    }
    Ok(table)
}
