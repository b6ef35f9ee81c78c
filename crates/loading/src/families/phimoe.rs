//! Phi 3.5 MoE: layer norms, biases, and two experts per token chosen by SparseMixer.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, MlpNames, Names};
use super::{Family, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    Experts, Layers, NormKind, Positional, RopeScaling, RouterFn, Settings, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "phimoe",
    architectures: &["PhimoeForCausalLM", "PhiMoEForCausalLM", "PhimoeModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "rope_theta": 1e6, "num_local_experts": 16, "num_experts_per_tok": 2, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "intermediate_size": 6400, "max_position_embeddings": 131_072
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let mut base = llama_like::config(json)?;
    if let Positional::Rotary(rotary) = base.positional_mut() {
        let newer = rope::parameters(json, "full_attention")?;
        let told = if newer.is_some() { newer } else { json.object("rope_scaling")? };
        let factor = |name: &str| told.as_ref().map_or(Ok(None), |told| told.maybe_number(name));
        match (&mut rotary.scaling, factor("short_mscale")?, factor("long_mscale")?) {
            (RopeScaling::None, ..) => {}
            // The file's factor multiplies rotated vectors regardless of the text's length.
            (RopeScaling::Long { attention_factor, .. }, Some(short), Some(long)) if short == long => {
                *attention_factor = short;
            }
            _ => return Err(json.unsupported("rope_scaling")),
        }
    }
    let experts = Experts {
        renormalize: false,
        router: RouterFn::SparseMixer { jitter: json.number("router_jitter_noise", 0.01)? },
        ..Experts::new(json.size("num_local_experts")?, json.size("num_experts_per_tok")?)
    };
    let windows = llama_like::one_window(json, base.n_layers())?;
    base.with_mixture(experts).with_norm(NormKind::LayerNorm).with_windows(windows)
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let (router, folder) = ("block_sparse_moe.gate", "block_sparse_moe.experts");
    let mlp = MlpNames::Experts { router, folder, parts: ["w3", "w1", "w2"] };
    let attention = json.flag("attention_bias", false)?;
    let biases = Biases { qkv: attention, output: attention, mlp: false };
    let mut table = llama_like::weights_with(config, json, Names { mlp, biases, ..Names::LLAMA })?;
    for layer in 0..config.n_layers() {
        for (norm, name) in llama_like::BEFORE {
            let bias = format!("model.layers.{layer}.{name}.bias");
            table.add(format!("blocks.{layer}.{norm}.b"), bias, Layout::AsIs);
        }
    }
    table.add("ln_final.b", "model.norm.bias", Layout::AsIs);
    if json.flag("lm_head_bias", false)? {
        table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    }
    Ok(table)
}
