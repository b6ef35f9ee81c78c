//! Baichuan 1 and 2: Llama with a fused QKV projection. The 13B models use ALiBi; version 2 normalizes the rows of the
//! unembedding to unit length.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind, Positional, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "baichuan",
    architectures: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
    prefix: "",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.has("max_position_embeddings") {
        return llama_like::config(json);
    }
    // The 13B models state only the length they were trained on.
    let n_ctx = json.size("model_max_length")?;
    let base = json.sizes(HfConfig::SIZES, n_ctx)?;
    Ok(base
        .with_d_mlp(json.size("intermediate_size")?)
        .with_gated_mlp(true)
        .with_positional(Positional::Alibi)
        .with_norm(NormKind::Rms)
        .with_eps(json.number("rms_norm_eps", 1e-6)?)
        .with_activation(json.text("hidden_act", "silu")?.parse::<ActivationFn>()?))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights(c, json)?;
    let width = c.n_heads() * c.d_head();
    for layer in 0..c.n_layers() {
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Rows { start: part * width, of: 3 * width };
            let name = format!("model.layers.{layer}.self_attn.W_pack.weight");
            table.add(format!("blocks.{layer}.attn.W_{letter}"), name, layout);
        }
    }
    // Only version 2's configurations have this setting.
    if json.has("z_loss_weight") {
        table.add("unembed.W_U", "lm_head.weight", Layout::UnitRows);
    }
    Ok(table)
}
