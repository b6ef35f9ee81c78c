//! Apertus: per-head query and key norms, and a plain MLP with a learned activation function (xIELU).

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "apertus",
    architectures: &["ApertusForCausalLM", "ApertusModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_theta": 12e6, "max_position_embeddings": 65_536,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0
        }
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(&json.defaulting(&DEFAULTS))?;
    Ok(base.with_gated_mlp(false).with_qk_norm(QkNorm::HEADS))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let norms = &[("ln1", "attention_layernorm"), ("ln2", "feedforward_layernorm")];
    let mut names = Names { norms, mlp: MlpNames::Plain, ..Names::LLAMA }.with_biases_of(json)?;
    names.biases.mlp = false;
    let mut table = llama_like::weights_with(config, json, names)?;
    // These two parameters of the activation function have the same values in every model.
    table.derived = &["rotary_emb.inv_freq", "act_fn.beta", "act_fn.eps"];
    for layer in 0..config.n_layers() {
        for part in ["alpha_p", "alpha_n"].into_iter().filter(|_| config.activation() == ActivationFn::Xielu) {
            let name = format!("model.layers.{layer}.mlp.act_fn.{part}");
            table.add(format!("blocks.{layer}.mlp.{part}"), name, Layout::AsIs);
        }
    }
    Ok(table)
}
