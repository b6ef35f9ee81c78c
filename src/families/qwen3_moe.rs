//! Qwen 3 with a mixture of experts, in all layers or some.

use serde_json::Value;

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures, qwen3};
use crate::config::{Experts, TransformerConfig};
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
    let experts = experts(json)?;
    let base = qwen3::config(json)?;
    // In a mixture all layers have the window.
    let windows = match json.flag("use_sliding_window", false)? {
        true => llama_like::one_window(json, base.n_layers)?,
        false => Vec::new(),
    };
    Ok(TransformerConfig { windows, ..mixtures::with_experts(base, experts, dense_layers(json)?) })
}

/// The experts and the neurons of each.
pub(super) fn experts(json: &HfConfig<'_>) -> Result<(Experts, usize), ConfigError> {
    // What newer files call them.
    let count = if json.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
    let renormalize = json.flag("norm_topk_prob", false)?;
    let experts = Experts::new(json.size(count)?, json.size("num_experts_per_tok")?);
    Ok((Experts { renormalize, ..experts }, json.size("moe_intermediate_size")?))
}

/// Which layers have a plain MLP.
pub(super) fn dense_layers(json: &HfConfig<'_>) -> Result<impl Fn(usize) -> bool + use<>, ConfigError> {
    let step = json.maybe_size("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(json.unsupported("decoder_sparse_step"));
    }
    let listed = json.list("mlp_only_layers")?.into_iter().flatten();
    let listed: Option<Vec<u64>> = listed.map(Value::as_u64).collect();
    let listed = listed.ok_or_else(|| json.unsupported("mlp_only_layers"))?;
    Ok(move |layer: usize| listed.contains(&(layer as u64)) || !(layer + 1).is_multiple_of(step))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, mixtures::names(json)?)
}
