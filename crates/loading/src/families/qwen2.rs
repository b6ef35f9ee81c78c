//! Qwen 1.5, 2 and 2.5: Llama with biases on queries, keys and values, and windows in some layers of some models. MiMo
//! is the same, with additional multi-token prediction layers that are not read.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{TransformerConfig, Window};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "qwen2",
    architectures: &["Qwen2ForCausalLM", "Qwen2Model", "MiMoForCausalLM"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = windows(json, base.n_layers())?;
    // These models were trained without a beginning-of-sequence token.
    base.with_default_prepend_bos(false).with_windows(windows)
}

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"sliding_window": 4096}));

/// Windows of the layers from `max_window_layers` on, unless windows are disabled.
pub(super) fn windows(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    if !json.flag("use_sliding_window", false)? {
        let kinds = json.per_layer("layer_types", n_layers)?.into_iter().flatten();
        if kinds.into_iter().any(|kind| kind == "sliding_attention") {
            let reason = "it is false, but `layer_types` lists `sliding_attention`".to_string();
            return Err(ConfigError::Contradiction { field: "use_sliding_window", reason });
        }
        return Ok(Vec::new());
    }
    let json = &json.defaulting(&DEFAULTS);
    let full = json.size_or("max_window_layers", 28)?;
    llama_like::windows_by_type(json, n_layers, |layer| layer >= full)
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Biases { qkv: true, output: false, mlp: false };
    llama_like::weights_with(config, json, Names { biases, ..Names::LLAMA })
}
