//! OLMo 1: Llama with layer norms without weights.

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{NormKind, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "olmo", architectures: &["OlmoForCausalLM", "OlmoModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let qkv_clip = json.maybe_number("clip_qkv")?;
    Ok(base.with_norm(NormKind::LayerNormPre).with_eps(1e-5).with_qkv_clip(qkv_clip).with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let names = Names { norms: &[], last_norm: false, ..Names::LLAMA }.with_biases_of(json)?;
    llama_like::weights_with(config, json, names)
}
