//! Qwen 1.5, 2 and 2.5: Llama with biases on queries, keys and values, and windows in some
//! layers of some models.

use super::hf_config::HfConfig;
use super::llama_like::Biases;
use super::{Family, llama_like};
use crate::config::{TransformerConfig, Window};
use crate::error::ConfigError;
use crate::loading::WeightTable;

pub(super) static FAMILY: Family =
    Family { name: "qwen2", architectures: &["Qwen2ForCausalLM", "Qwen2Model"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let window = match json.flag("use_sliding_window", false)? {
        true => json.maybe_size("sliding_window")?.map(Window::Sliding),
        false => None,
    };
    let windows = match (window, json.list("layer_types")?) {
        (None, _) => Vec::new(),
        (Some(window), Some(kinds)) => {
            kinds.iter().map(|kind| (kind.as_str() == Some("sliding_attention")).then_some(window)).collect()
        }
        (Some(window), None) => {
            let full = json.maybe_size("max_window_layers")?.unwrap_or(28);
            (0..base.n_layers).map(|layer| (layer >= full).then_some(window)).collect()
        }
    };
    // These models were trained without a beginning-of-sequence token.
    Ok(TransformerConfig { windows, default_prepend_bos: false, ..base })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Biases { qkv: true, output: false, mlp: false })
}
