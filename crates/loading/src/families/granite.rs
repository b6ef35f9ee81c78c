//! Granite: Llama with scales for embeddings, scores, residual additions, and logits.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Layers, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "granite",
    architectures: &["GraniteForCausalLM", "GraniteModel"],
    prefix: "model.",
    config,
    weights,
};

pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let embed = json.number("embedding_multiplier", 1.0)?;
    Ok(base
        .with_embed_scale((embed != 1.0).then_some(embed))
        .with_attn_scale(1.0 / json.number("attention_multiplier", 1.0)?))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights(config, json)?;
    scale(&mut table, config, json)?;
    Ok(table)
}

/// Folds the scales of residual additions and logits into the preceding weights.
pub(super) fn scale(
    table: &mut WeightTable,
    config: &TransformerConfig,
    json: &HfConfig<'_>,
) -> Result<(), ConfigError> {
    let added = json.number("residual_multiplier", 1.0)?;
    llama_like::scale_written(table, config.n_layers(), added);
    let experts = config.experts().map_or(0, |experts| experts.count);
    for layer in 0..config.n_layers() {
        table.scale(&format!("blocks.{layer}.mlp.shared.W_out"), added);
        for expert in 0..experts {
            table.scale(&format!("blocks.{layer}.mlp.experts.{expert}.W_out"), added);
        }
    }
    // Scale the final norm instead of the unembedding, which may be tied.
    table.scale("ln_final.w", 1.0 / json.number("logits_scaling", 1.0)?);
    Ok(())
}
