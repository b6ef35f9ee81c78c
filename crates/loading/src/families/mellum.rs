//! Mellum 2: Qwen 3's mixture of experts. Some layers have windows and a rotary embedding of their own.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures, qwen3_moe, rope};
use hooklens_model::config::{Layers, Positional, QkNorm, Rotary, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mellum",
    architectures: &["MellumForCausalLM", "MellumModel"],
    prefix: "model.",
    config,
    weights: |config, json| llama_like::weights_with(config, json, mixtures::names(json)?),
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131_072, "sliding_window": 1024,
        "moe_intermediate_size": 896, "num_experts_per_tok": 8, "norm_topk_prob": true, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
        }
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let plain = mixtures::dense_by_type(json, base.n_layers(), |_| false)?;
    let windows = match json.list("layer_types")?.is_some() {
        true => llama_like::windows_by_type(json, base.n_layers(), |_| false)?,
        false => Vec::new(),
    };
    let layer_rotary: Vec<Option<Rotary>> = match (base.positional(), windows.is_empty()) {
        (Positional::Rotary(far), false) => {
            let near = rope::of_windows(json, far)?.ok_or_else(|| json.unsupported("rope_parameters"))?;
            rope::by_window(&windows, &near, far)
        }
        _ => Vec::new(),
    };
    let base = base
        .with_qk_norm(QkNorm::HEADS)
        .with_default_prepend_bos(false)
        .with_windows(windows)?
        .with_layer_rotary(layer_rotary)?;
    Ok(mixtures::with_experts(base, qwen3_moe::experts(json)?, |layer| plain[layer]))
}
