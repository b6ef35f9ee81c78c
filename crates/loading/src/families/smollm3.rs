//! SmolLM 3: Llama with some layers without rotary positions (NoPE).

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use hooklens_model::config::{Layers, Positional, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

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

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"rope_theta": 2e6}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    // 1 means that the layer has rotary positions, despite the field's name.
    let rotates = |layer: &Value| match layer.as_u64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(ConfigError::UnknownValue { field: "no_rope_layers", given: layer.to_string(), known: "0, 1" }),
    };
    let rotates: Vec<bool> = match json.per_layer("no_rope_layers", base.n_layers())? {
        Some(layers) => layers.iter().map(rotates).collect::<Result<_, _>>()?,
        None => {
            let interval = json.size_or("no_rope_layer_interval", 4)?.max(1);
            (0..base.n_layers()).map(|layer| (layer + 1) % interval != 0).collect()
        }
    };
    let layer_rotary = match base.positional() {
        Positional::Rotary(rotary) if rotates.contains(&false) => {
            rotates.iter().map(|rotates| rotates.then(|| rotary.clone())).collect()
        }
        _ => Vec::new(),
    };
    // `layer_types` takes precedence over `use_sliding_window`.
    let listed = json.list("layer_types")?.is_some();
    let windows = match listed || json.flag("use_sliding_window", false)? {
        true => llama_like::windows_by_type(json, base.n_layers(), |layer| rotates.get(layer) == Some(&false))?,
        false => Vec::new(),
    };
    base.with_default_prepend_bos(false).with_layer_rotary(layer_rotary)?.with_windows(windows)
}
