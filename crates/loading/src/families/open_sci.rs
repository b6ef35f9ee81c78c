//! Open-sci: Llama with biases and per-head query and key norms.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "opensci",
    architectures: &["OpensciForCausalLM", "OpensciModel"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let qk_norm = json.flag("qk_layernorm", false)?.then_some(QkNorm::HEADS);
    Ok(llama_like::config(json)?.with_qk_norm(qk_norm).with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights(c, json)?;
    if c.qk_norm().is_some() {
        for layer in 0..c.n_layers() {
            for norm in ["q", "k"] {
                let name = format!("model.layers.{layer}.self_attn.{norm}_layernorm.weight");
                table.or(&format!("blocks.{layer}.attn.{norm}_norm.w"), &name, Layout::AsIs);
            }
        }
    }
    Ok(table)
}
