//! Qwen 3: Llama with per-head query and key norms.

use super::hf_config::HfConfig;
use super::{Family, llama_like, qwen2};
use hooklens_model::config::{QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "qwen3",
    architectures: &["Qwen3ForCausalLM", "Qwen3Model"],
    prefix: "model.",
    config,
    weights: llama_like::weights,
};

pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = qwen2::windows(json, base.n_layers())?;
    base.with_qk_norm(QkNorm::HEADS).with_default_prepend_bos(false).with_windows(windows)
}
