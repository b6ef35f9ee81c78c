//! GLM and GLM 4: Llama with a fused gate and rotary embedding of adjacent pairs in half of each head; GLM 4 also has
//! norms after attention and the MLP.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{BEFORE, Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::TransformerConfig;
use hooklens_model::error::ConfigError;

pub(super) static GLM: Family = Family {
    name: "glm",
    architectures: &["GlmForCausalLM", "GlmModel"],
    prefix: "model.",
    config,
    weights: |config, json| weights(config, json, BEFORE),
};

pub(super) static GLM4: Family = Family {
    name: "glm4",
    architectures: &["Glm4ForCausalLM", "Glm4Model"],
    prefix: "model.",
    config: |json| Ok(config(json)?.with_post_norms(true)),
    weights: |config, json| weights(config, json, AROUND),
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(
    || json!({"head_dim": 128, "rms_norm_eps": 1.5625e-7, "num_key_value_heads": 2, "max_position_embeddings": 131_072}),
);

const AROUND: &[(&str, &str)] = &[
    ("ln1", "input_layernorm"),
    ("ln1_post", "post_self_attn_layernorm"),
    ("ln2", "post_attention_layernorm"),
    ("ln2_post", "post_mlp_layernorm"),
];

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::of_neighbors(llama_like::config_turning(json, 0.5)?);
    Ok(base.with_default_prepend_bos(false))
}

fn weights(
    c: &TransformerConfig,
    json: &HfConfig<'_>,
    norms: &'static [(&'static str, &'static str)],
) -> Result<WeightTable, ConfigError> {
    let biases = Biases { qkv: json.flag("attention_bias", true)?, output: false, mlp: false };
    let mut table = llama_like::weights_with(c, json, Names { biases, norms, ..Names::LLAMA })?;
    llama_like::fuse_gate(&mut table, c);
    Ok(table)
}
