//! OLMo 2 and 3: norms only after attention and the MLP, and query and key norms over all heads at once; in OLMo 3,
//! windows in most layers, and rotary scaling only in the others.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, rope};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Layers, Positional, QkNorm, RopeScaling, Rotary, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "olmo2",
    architectures: &["Olmo2ForCausalLM", "Olmo2Model", "Olmo3ForCausalLM", "Olmo3Model"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"sliding_window": 4096}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let windows = match json.architecture().starts_with("Olmo3") {
        true => llama_like::windows_by_type(json, base.n_layers(), |layer| (layer + 1) % 4 != 0)?,
        false => Vec::new(),
    };
    let layer_rotary = match base.positional() {
        Positional::Rotary(far) if !windows.is_empty() => {
            let older = Rotary { scaling: RopeScaling::None, ..far.clone() };
            let near = rope::of_windows(json, far)?.unwrap_or(older);
            if near == *far { Vec::new() } else { rope::by_window(&windows, &near, far) }
        }
        _ => Vec::new(),
    };
    base.with_pre_norms(false)
        .with_post_norms(true)
        .with_qk_norm(QkNorm::WHOLE)
        .with_eps(json.number("rms_norm_eps", 1e-5)?)
        .with_default_prepend_bos(false)
        .with_windows(windows)?
        .with_layer_rotary(layer_rotary)
}

/// Names of the norms after attention and the MLP.
pub(super) const NORMS: &[(&str, &str)] =
    &[("ln1_post", "post_attention_layernorm"), ("ln2_post", "post_feedforward_layernorm")];

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Names { norms: NORMS, ..Names::LLAMA }.with_biases_of(json)?)
}
