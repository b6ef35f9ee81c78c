//! Nemotron: layer norms with weights stored as `w - 1`, a plain MLP, and half of each head rotated.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{BEFORE, MlpNames, Names};
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{NormKind, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "nemotron",
    architectures: &["NemotronForCausalLM", "NemotronModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"hidden_act": "relu2", "max_position_embeddings": 4096}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Transformers 4 ignores this field.
    if json.get("rope_scaling").is_some() {
        return Err(json.unsupported("rope_scaling"));
    }
    let json = &json.defaulting(&DEFAULTS);
    let eps = json.number("norm_eps", 1e-5)?;
    let base = llama_like::config_turning(json, 0.5)?;
    Ok(base.with_gated_mlp(false).with_norm(NormKind::LayerNorm).with_eps(eps))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let names = Names { mlp: MlpNames::Plain, norm_layout: Layout::OneLess, ..Names::LLAMA }.with_biases_of(json)?;
    let mut table = llama_like::weights_with(config, json, names)?;
    for layer in 0..config.n_layers() {
        for (norm, name) in BEFORE {
            let name = format!("model.layers.{layer}.{name}.bias");
            table.add(format!("blocks.{layer}.{norm}.b"), name, Layout::AsIs);
        }
    }
    table.add("ln_final.b", "model.norm.bias", Layout::AsIs);
    Ok(table)
}
