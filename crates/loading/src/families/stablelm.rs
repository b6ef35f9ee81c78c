//! StableLM 2: Llama with layer norms and partial rotary embedding.

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{NormKind, QkNorm, QkNormWeights, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "stablelm",
    architectures: &["StableLmForCausalLM", "StableLmModel"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let heads = QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS };
    let base = llama_like::config_turning(json, 0.25)?;
    Ok(base
        .with_norm(NormKind::LayerNorm)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_qk_norm(json.flag("qk_layernorm", false)?.then_some(heads))
        .with_residual(if json.flag("use_parallel_residual", false)? {
            ResidualScheme::Parallel
        } else {
            ResidualScheme::Sequential
        })
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Biases { qkv: json.flag("use_qkv_bias", false)?, output: false, mlp: false };
    let mut table = llama_like::weights_with(config, json, Names { biases, norms: &[], ..Names::LLAMA })?;
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        table.norm(&format!("blocks.{layer}.ln1"), &from("input_layernorm"));
        // In a parallel block, attention and MLP share one norm.
        let second =
            if config.residual() == ResidualScheme::Parallel { "input_layernorm" } else { "post_attention_layernorm" };
        table.norm(&format!("blocks.{layer}.ln2"), &from(second));
    }
    table.norm("ln_final", "model.norm");
    for layer in 0..config.n_layers() {
        for (letter, heads) in [("q", config.n_heads()), ("k", config.n_kv_heads())] {
            let norm = format!("blocks.{layer}.attn.{letter}_norm");
            // One tensor per head.
            table.remove(&format!("{norm}.w"));
            for head in 0..config.qk_norm().map_or(0, |_| heads) {
                let name = format!("model.layers.{layer}.self_attn.{letter}_layernorm.norms.{head}.weight");
                table.add(format!("{norm}.{head}.w"), name, Layout::AsIs);
            }
        }
    }
    Ok(table)
}
