//! AFMoE (Trinity): norms before and after attention and MLP, gated attention with rotary embedding only in windowed
//! layers, and expert routing as in DeepSeek V3.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, Layers, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "afmoe", architectures: &["AfmoeForCausalLM", "AfmoeModel"], prefix: "model.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 200_192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1408,
        "num_hidden_layers": 32, "num_dense_layers": 1, "num_attention_heads": 16, "head_dim": 128,
        "max_position_embeddings": 16_384, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 6,
        "num_shared_experts": 2, "global_attn_every_n_layers": 4, "sliding_window": 1024
    })
});

const NORMS: &[(&str, &str)] = &[
    ("ln1", "input_layernorm"),
    ("ln1_post", "post_attention_layernorm"),
    ("ln2", "pre_mlp_layernorm"),
    ("ln2_post", "post_mlp_layernorm"),
];

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    // Settings of the code that was used before transformers supported the family. All published files have these
    // values.
    for (field, usual) in [("n_group", 1), ("topk_group", 1), ("num_expert_groups", 1), ("num_limited_groups", 1)] {
        if json.size_or(field, usual)? != usual {
            return Err(json.unsupported(field));
        }
    }
    if json.text("score_func", "sigmoid")? != "sigmoid" {
        return Err(json.unsupported("score_func"));
    }
    if !json.flag("route_norm", true)? {
        return Err(json.unsupported("route_norm"));
    }
    let base = llama_like::config(json)?;
    let every = json.size("global_attn_every_n_layers")?.max(1);
    let windows = llama_like::windows_by_type(json, base.n_layers(), |layer| !(layer + 1).is_multiple_of(every))?;
    let base = base.with_windows(windows)?;
    let layer_rotary = llama_like::rotating_in_windows(&base);
    let embed_scale = json.flag("mup_enabled", false)?.then(|| (base.d_model() as f64).sqrt());
    let base = base
        .with_embed_scale(embed_scale)
        .with_post_norms(true)
        .with_qk_norm(QkNorm::HEADS)
        .with_attn_gates(true)
        .with_layer_rotary(layer_rotary)?;
    let d_mlp = json.size("moe_intermediate_size")?;
    let (count, per_token) = (json.size("num_experts")?, json.size("num_experts_per_tok")?);
    let shared = json.size_or("num_shared_experts", 0)?;
    let experts =
        Experts { scale: json.number("route_scale", 1.0)?, ..mixtures::by_sigmoids(count, per_token, shared, d_mlp) };
    let dense = json.size_or("num_dense_layers", 0)?;
    Ok(mixtures::with_experts(base, (experts, d_mlp), |layer| layer < dense))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let parts = ["up_proj", "gate_proj", "down_proj"];
    let mlp = MlpNames::Experts { router: "mlp.router.gate", folder: "mlp.experts", parts };
    let mut table = llama_like::weights_with(c, json, Names { norms: NORMS, mlp, ..mixtures::names(json)? })?;
    mixtures::add_shared(&mut table, c, "mlp.shared_experts", Some("mlp.expert_bias"));
    for layer in 0..c.n_layers() {
        let from = format!("model.layers.{layer}.self_attn.gate_proj");
        table.linear(&format!("blocks.{layer}.attn.W_gate"), &from, false);
    }
    Ok(table)
}
