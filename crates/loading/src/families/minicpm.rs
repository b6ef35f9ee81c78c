//! MiniCPM: Llama with scales for embeddings, residual additions, and logits.

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Positional, RopeScaling, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "minicpm", architectures: &["MiniCPMForCausalLM"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Version 4.1 uses sparse attention for long texts.
    if json.get("sparse_config").is_some() {
        return Err(json.unsupported("sparse_config"));
    }
    if !json.flag("is_causal", true)? {
        return Err(json.unsupported("is_causal"));
    }
    if json.maybe_size("num_experts")?.is_some_and(|count| count > 0) {
        return Err(json.unsupported("num_experts"));
    }
    let base = llama_like::config(json)?;
    // If the context was extended, MiniCPM's code uses the long factors for short texts too.
    if let Positional::Rotary(rotary) = base.positional()
        && let RopeScaling::Long { original_context, .. } = rotary.scaling
        && base.n_ctx() > original_context
    {
        return Err(json.unsupported("rope_scaling"));
    }
    let embed = json.number("scale_emb", 1.0)?;
    Ok(base.with_embed_scale((embed != 1.0).then_some(embed)))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights_with(c, json, Names { tied: true, ..Names::LLAMA }.with_biases_of(json)?)?;
    let added = json.number("scale_depth", 1.0)? / (c.n_layers() as f64).sqrt();
    llama_like::scale_written(&mut table, c.n_layers(), added);
    // Scale the final norm instead of the unembedding, which may be tied.
    table.scale("ln_final.w", json.number("dim_model_base", 1.0)? / c.d_model() as f64);
    Ok(table)
}
