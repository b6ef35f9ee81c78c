//! FlexOLMo: OLMo 2 with a mixture of experts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, mixtures, olmo2};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, Layers, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "flex_olmo",
    architectures: &["FlexOlmoForCausalLM", "FlexOlmoModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "rope_theta": 500_000.0, "num_experts": 7, "num_experts_per_tok": 5, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let renormalize = json.flag("norm_topk_prob", false)?;
    let experts = Experts::new(json.size("num_experts")?, json.size("num_experts_per_tok")?);
    Ok(llama_like::config(json)?
        .with_mixture(Experts { renormalize, ..experts })
        .with_pre_norms(false)
        .with_post_norms(true)
        .with_qk_norm(QkNorm::WHOLE)
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, Names { norms: olmo2::NORMS, ..mixtures::names(json)? })
}
