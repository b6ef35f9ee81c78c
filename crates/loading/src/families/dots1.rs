//! dots.llm1: DeepSeek V3's experts with Qwen 3's attention.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "dots1", architectures: &["Dots1ForCausalLM", "Dots1Model"], prefix: "model.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "num_key_value_heads": 32, "moe_intermediate_size": 1408, "norm_topk_prob": false, "sliding_window": 4096,
        "max_window_layers": 62
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let full = json.size_or("max_window_layers", usize::MAX)?;
    let windows = llama_like::windows_by_type(json, base.n_layers(), |layer| layer >= full)?;
    let windows = if windows.iter().any(Option::is_some) { windows } else { Vec::new() };
    let base = base.with_qk_norm(QkNorm::HEADS).with_default_prepend_bos(false).with_windows(windows)?;
    let first = json.size_or("first_k_dense_replace", 0)?;
    Ok(mixtures::with_experts(base, mixtures::deepseek(json)?, |layer| layer < first))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights_with(config, json, mixtures::names(json)?)?;
    mixtures::add_shared(&mut table, config, "mlp.shared_experts", Some("mlp.gate.e_score_correction_bias"));
    Ok(table)
}
