//! OLMoE: a mixture of experts, with query and key norms over all heads at once.

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Layers, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "olmoe", architectures: &["OlmoeForCausalLM", "OlmoeModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let experts = llama_like::experts(json, "num_experts", json.flag("norm_topk_prob", false)?)?;
    let base = llama_like::config(json)?;
    let eps = json.number("rms_norm_eps", 1e-5)?;
    let (qk_norm, qkv_clip) = (Some(QkNorm::WHOLE), json.maybe_number("clip_qkv")?);
    Ok(base
        .with_mixture(experts)
        .with_qk_norm(qk_norm)
        .with_qkv_clip(qkv_clip)
        .with_eps(eps)
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    llama_like::weights_with(config, json, mixtures::names(json)?)
}
