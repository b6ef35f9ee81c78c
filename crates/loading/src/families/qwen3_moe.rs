//! Qwen 3 with a mixture of experts in all or some layers, and the text model of Qwen 3 VL, whose files stack the
//! experts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures, qwen3};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, Layers, MlpConfig, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "qwen3_moe",
    architectures: &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    prefix: "model.",
    config,
    weights,
};

pub(super) static VL: Family = Family {
    name: "qwen3_vl_moe_text",
    architectures: &["Qwen3VLMoeTextModel"],
    prefix: "model.",
    config: |json| vl(&json.defaulting(&DEFAULTS_VL)),
    weights: stacked,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS_VL: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128_000, "rope_theta": 5e6,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_local_experts": 60
    })
});

/// Qwen 3 VL's settings: the weights of the chosen experts always sum to one.
fn vl(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let mut config = config(json)?;
    for layer in config.layers_mut() {
        if let MlpConfig::Experts { experts, .. } = &mut layer.mlp {
            experts.renormalize = true;
        }
    }
    Ok(config)
}

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let experts = experts(json)?;
    let base = qwen3::config(json)?;
    // In models with mixtures of experts, all layers have the window.
    let windows = match json.flag("use_sliding_window", false)? {
        true => llama_like::one_window(json, base.n_layers())?,
        false => Vec::new(),
    };
    mixtures::with_experts(base, experts, dense_layers(json)?).with_windows(windows)
}

/// The experts, and the width of each.
pub(super) fn experts(json: &HfConfig<'_>) -> Result<(Experts, usize), ConfigError> {
    // Newer files use `num_local_experts` instead of `num_experts`.
    let count = if json.has("num_experts") { "num_experts" } else { "num_local_experts" };
    let renormalize = json.flag("norm_topk_prob", false)?;
    let experts = Experts::new(json.size(count)?, json.size("num_experts_per_tok")?);
    Ok((Experts { renormalize, ..experts }, json.size("moe_intermediate_size")?))
}

/// Which layers have a plain MLP.
pub(super) fn dense_layers(json: &HfConfig<'_>) -> Result<impl Fn(usize) -> bool + use<>, ConfigError> {
    let step = json.size_or("decoder_sparse_step", 1)?;
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

fn stacked(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = weights(c, json)?;
    for layer in 0..c.n_layers() {
        let Some(experts) = c.experts_of(layer) else { continue };
        let (to, from) = (format!("blocks.{layer}.mlp.experts"), format!("model.layers.{layer}.mlp.experts"));
        mixtures::add_stacked(&mut table, &to, &from, experts.count);
    }
    Ok(table)
}
