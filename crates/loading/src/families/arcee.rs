//! Arcee: Llama with a plain MLP and squared ReLU.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like};

pub(super) static FAMILY: Family = Family {
    name: "arcee",
    architectures: &["ArceeForCausalLM", "ArceeModel"],
    prefix: "model.",
    config: |json| Ok(llama_like::config(&json.defaulting(&DEFAULTS))?.with_gated_mlp(false)),
    weights: |config, json| {
        let names = Names { mlp: MlpNames::Plain, ..Names::LLAMA }.with_biases_of(json)?;
        llama_like::weights_with(config, json, names)
    },
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}));
