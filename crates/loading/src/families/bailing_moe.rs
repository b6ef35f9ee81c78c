//! Bailing (Ling and Ring, 1 and 2) and Sarvam mixtures of experts, with a fused QKV projection. Experts are chosen by
//! softmax in version 1, and as in DeepSeek V3 in the others.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Experts, QkNorm, RouterFn, Settings, SharedExpert, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static ONE: Family = Family {
    name: "bailing_moe",
    architectures: &["BailingMoeForCausalLM", "BailingMoeModel"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&DEFAULTS)),
    weights,
};

pub(super) static TWO: Family = Family {
    name: "bailing_moe_v2",
    architectures: &["BailingMoeV2ForCausalLM", "BailingMoeV2Model"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&DEFAULTS_2)),
    weights,
};

pub(super) static SARVAM: Family = Family {
    name: "sarvam_moe",
    architectures: &["SarvamMoEForCausalLM", "SarvamMoEModel"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&DEFAULTS_SARVAM)),
    weights,
};

/// Defaults from Bailing 1's own code for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "use_bias": true, "rms_norm_eps": 1e-5, "max_position_embeddings": 16_384, "n_routed_experts": 16,
        "num_experts_per_tok": 2
    })
});
/// Defaults from Bailing 2's own code.
static DEFAULTS_2: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "head_dim": 128, "rope_theta": 600_000.0, "partial_rotary_factor": 0.5, "use_qk_norm": true,
        "score_function": "sigmoid", "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
        "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_intermediate_size": 512,
        "max_position_embeddings": 32_768
    })
});
/// Hugging Face's defaults for Sarvam.
static DEFAULTS_SARVAM: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 19,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 131_072,
        "rope_theta": 8e6, "use_qk_norm": true, "score_function": "sigmoid", "n_routed_experts": 128, "n_shared_experts": 1,
        "num_experts_per_tok": 6, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_intermediate_size": 1024
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    for field in ["use_bias", "norm_head", "norm_softmax", "use_sliding_window", "multi_gate"] {
        if json.flag(field, false)? {
            return Err(json.unsupported(field));
        }
    }
    let base = llama_like::config(json)?;
    let qk_norm = json.flag("use_qk_norm", false)?.then_some(QkNorm::HEADS);
    let base = base.with_qk_norm(qk_norm).with_default_prepend_bos(false);
    let first = json.size_or("first_k_dense_replace", 0)?;
    let (experts, d_mlp) = mixtures::deepseek(json)?;
    // Width of one shared expert, if it differs from the width of a routed expert.
    let shared = match (experts.shared, json.maybe_size("moe_shared_expert_intermediate_size")?) {
        (Some(all), Some(own)) if d_mlp > 0 => Some(SharedExpert { d_mlp: all.d_mlp / d_mlp * own, ..all }),
        (all, _) => all,
    };
    let experts = match json.text("score_function", "softmax")? {
        "sigmoid" => Experts { shared, ..experts },
        "softmax" => Experts { router: RouterFn::Softmax, choice_bias: false, groups: None, shared, ..experts },
        _ => return Err(json.unsupported("score_function")),
    };
    Ok(mixtures::with_experts(base, (experts, d_mlp), |layer| layer < first))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    // Transformers 5 uses `attention_bias` instead of `use_qkv_bias`.
    let biased = json.flag("use_qkv_bias", json.flag("attention_bias", false)?)?;
    let biases = Biases { qkv: biased, output: false, mlp: false };
    let mut table = llama_like::weights_with(c, json, Names { mlp: mixtures::EXPERTS, biases, ..Names::LLAMA })?;
    mixtures::add_shared(&mut table, c, "mlp.shared_experts", Some("mlp.gate.expert_bias"));
    table.add("embed.W_E", "model.word_embeddings.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.attention.{part}");
        let to = |part: &str| format!("blocks.{layer}.attn.{part}");
        llama_like::fuse_attention(&mut table, c, layer, &from("query_key_value"), biased);
        table.linear(&to("W_O"), &from("dense"), false);
        if c.qk_norm().is_some() {
            table.add(to("q_norm.w"), from("query_layernorm.weight"), Layout::AsIs);
            table.add(to("k_norm.w"), from("key_layernorm.weight"), Layout::AsIs);
        }
    }
    Ok(table)
}
