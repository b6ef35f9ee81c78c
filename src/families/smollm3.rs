//! SmolLM 3: Llama some of whose layers rotate nothing.

use super::hf_config::HfConfig;
use super::{Family, llama_like, qwen2};
use crate::config::{Positional, TransformerConfig};
use crate::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "smollm3",
    architectures: &["SmolLM3ForCausalLM", "SmolLM3Model"],
    prefix: "model.",
    config,
    weights: |config, json| {
        let names = llama_like::Names { tied: true, ..llama_like::Names::LLAMA }.with_biases_of(json)?;
        llama_like::weights_with(config, json, names)
    },
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let rotates: Vec<bool> = match json.list("no_rope_layers")? {
        // One for layers that rotate, whatever the name says.
        Some(layers) => layers.iter().map(|layer| layer.as_u64() != Some(0)).collect(),
        None => {
            let interval = json.maybe_size("no_rope_layer_interval")?.unwrap_or(4).max(1);
            (0..base.n_layers).map(|layer| (layer + 1) % interval != 0).collect()
        }
    };
    let layer_rotary = match &base.positional {
        Positional::Rotary(rotary) if rotates.contains(&false) => {
            rotates.iter().map(|rotates| rotates.then(|| rotary.clone())).collect()
        }
        _ => Vec::new(),
    };
    let windows = qwen2::windows(json, base.n_layers)?;
    Ok(TransformerConfig { layer_rotary, windows, default_prepend_bos: false, ..base })
}
