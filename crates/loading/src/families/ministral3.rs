//! Ministral 3: Mistral with queries scaled by position.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, rope};
use hooklens_model::config::{QueryGrowth, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "ministral3",
    architectures: &["Ministral3ForCausalLM", "Ministral3Model"],
    prefix: "model.",
    config,
    weights: |config, json| llama_like::weights_with(config, json, Names::LLAMA),
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 262_144,
        "rope_parameters": {
            "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1
        }
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let told = rope::parameters(json, "full_attention")?.unwrap_or(*json);
    let query_growth = Some(QueryGrowth {
        rate: told.needed_number("llama_4_scaling_beta")?,
        context: told.size("original_max_position_embeddings")?,
        ahead: 0,
        still_layers: false,
    });
    let windows = llama_like::one_window(json, base.n_layers())?;
    base.with_query_growth(query_growth).with_windows(windows)
}
