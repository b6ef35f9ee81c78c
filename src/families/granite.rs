//! Granite: Llama with scales for embeddings, scores, residual additions, and logits.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::config::TransformerConfig;
use crate::error::ConfigError;
use crate::weight_files::WeightTable;

pub(super) static FAMILY: Family = Family {
    name: "granite",
    architectures: &["GraniteForCausalLM", "GraniteModel"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let embed = json.number("embedding_multiplier", 1.0)?;
    Ok(TransformerConfig {
        embed_scale: (embed != 1.0).then_some(embed),
        attn_scale: 1.0 / json.number("attention_multiplier", 1.0)?,
        ..base
    })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights(config, json)?;
    llama_like::scale_written(&mut table, config.n_layers, json.number("residual_multiplier", 1.0)?);
    // The last norm's weight stands right before the unembedding, which may be tied.
    table.scale("ln_final.w", 1.0 / json.number("logits_scaling", 1.0)?);
    Ok(table)
}
