//! Qwen 3 with a mixture of experts in every layer.

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, qwen3};
use crate::config::TransformerConfig;
use crate::error::ConfigError;
use crate::weight_files::WeightTable;

pub(super) static FAMILY: Family = Family {
    name: "qwen3_moe",
    architectures: &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.maybe_size("decoder_sparse_step")?.is_some_and(|step| step != 1) {
        return Err(json.unsupported("decoder_sparse_step"));
    }
    if json.list("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(json.unsupported("mlp_only_layers"));
    }
    // What newer files call them.
    let count = if json.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
    let experts = llama_like::experts(json, count, json.flag("norm_topk_prob", false)?)?;
    let base = qwen3::config(json)?;
    // In a mixture all layers have the window.
    let windows = match json.flag("use_sliding_window", false)? {
        true => llama_like::one_window(json, base.n_layers)?,
        false => Vec::new(),
    };
    Ok(TransformerConfig { experts, windows, d_mlp: json.size("moe_intermediate_size")?, ..base })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mlp =
        MlpNames::Experts { router: "mlp.gate", folder: "mlp.experts", parts: ["up_proj", "gate_proj", "down_proj"] };
    llama_like::weights_with(config, json, Names { mlp, ..Names::LLAMA }.with_biases_of(json)?)
}
