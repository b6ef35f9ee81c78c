//! DeepSeek 1 to 3 with mixtures of experts, and with latent attention from version 2 on. Also models similar to
//! version 3: DeepSeek 3.2, GLM, Sarvam and Youtu.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like, mixtures, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ExpertGroups, Experts, Latent, RopeScaling, Rotary, RouterFn, Settings, TransformerConfig,
};
use hooklens_model::error::ConfigError;

/// DeepSeek 1: Llama's attention, and experts chosen by softmax.
pub(super) static V1: Family =
    Family { name: "deepseek", architectures: &["DeepseekForCausalLM"], prefix: "model.", config: v1, weights: of_v1 };

/// DeepSeek 2: latent attention, and experts chosen by softmax, within groups in the larger model.
pub(super) static V2: Family = Family {
    name: "deepseek_v2",
    architectures: &["DeepseekV2ForCausalLM", "DeepseekV2Model"],
    prefix: "model.",
    config: v2,
    weights: of_v2,
};

/// DeepSeek 3: latent attention, and experts chosen by sigmoid scores plus a bias.
pub(super) static V3: Family = Family {
    name: "deepseek_v3",
    architectures: &["DeepseekV3ForCausalLM", "DeepseekV3Model"],
    prefix: "model.",
    config: v3,
    weights: of_v2,
};

/// DeepSeek 3.2: like version 3, but attends only to the keys selected by an indexer. Sequences no longer than the
/// number of keys it selects attend to all keys; longer sequences are rejected.
pub(super) static V3_2: Family = Family {
    name: "deepseek_v32",
    architectures: &["DeepseekV32ForCausalLM", "DeepseekV32Model"],
    prefix: "model.",
    config: |json| sparse(&json.defaulting(&DEFAULTS_3_2)),
    weights: of_v2,
};

/// GLM 4.7 Flash.
pub(super) static GLM_LITE: Family = Family {
    name: "glm4_moe_lite",
    architectures: &["Glm4MoeLiteForCausalLM", "Glm4MoeLiteModel"],
    prefix: "model.",
    config: |json| like_v3(&json.defaulting(&DEFAULTS_LITE)),
    weights: of_v2,
};

/// GLM 5, with an indexer as in DeepSeek 3.2.
pub(super) static GLM_SPARSE: Family = Family {
    name: "glm_moe_dsa",
    architectures: &["GlmMoeDsaForCausalLM", "GlmMoeDsaModel"],
    prefix: "model.",
    config: |json| sparse(&json.defaulting(&DEFAULTS_GLM_SPARSE)),
    weights: of_v2,
};

/// Sarvam's larger model, with latent attention.
pub(super) static SARVAM: Family = Family {
    name: "sarvam_mla",
    architectures: &["SarvamMLAForCausalLM", "SarvamMLAModel"],
    prefix: "model.",
    config: |json| like_v3(&json.defaulting(&DEFAULTS_SARVAM)),
    weights: of_v2,
};

/// Youtu: latent attention, without mixtures of experts.
pub(super) static YOUTU: Family = Family {
    name: "youtu",
    architectures: &["YoutuForCausalLM", "YoutuModel"],
    prefix: "model.",
    config: |json| {
        let json = &json.defaulting(&DEFAULTS_YOUTU);
        latent(json, json.flag("rope_interleave", true)?)
    },
    weights: |config, json| of_v2(config, &json.defaulting(&DEFAULTS_YOUTU)),
};

/// Defaults from DeepSeek 1's own code for fields missing from `config.json`.
static DEFAULTS_1: LazyLock<Value> = LazyLock::new(|| json!({"moe_intermediate_size": 1407}));
/// Hugging Face's defaults for DeepSeek 2.
static DEFAULTS_2: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128
    })
});
/// Hugging Face's defaults for DeepSeek 3.
static DEFAULTS_3: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8,
        "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096
    })
});

/// Hugging Face's defaults for DeepSeek 3.2.
static DEFAULTS_3_2: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5, "max_position_embeddings": 163_840, "index_topk": 2048
    })
});
/// Hugging Face's defaults for GLM 4.7 Flash.
static DEFAULTS_LITE: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240, "num_hidden_layers": 47,
        "num_attention_heads": 20, "n_routed_experts": 64, "n_shared_experts": 1, "moe_intermediate_size": 1536,
        "q_lora_rank": 768, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "num_experts_per_tok": 4, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202_752
    })
});
/// Hugging Face's defaults for GLM 5.
static DEFAULTS_GLM_SPARSE: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 154_880, "hidden_size": 6144, "intermediate_size": 12_288, "num_hidden_layers": 78,
        "num_attention_heads": 64, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202_752, "index_topk": 2048
    })
});

/// Hugging Face's defaults for Sarvam.
static DEFAULTS_SARVAM: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
        "num_attention_heads": 64, "n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "max_position_embeddings": 4096
    })
});
/// Hugging Face's defaults for Youtu.
static DEFAULTS_YOUTU: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 16, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 131_072, "tie_word_embeddings": true
    })
});

fn v1(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS_1);
    let base = llama_like::config(json)?;
    if json.get("n_routed_experts").is_none() {
        return Ok(base);
    }
    let experts = Experts { renormalize: json.flag("norm_topk_prob", false)?, ..softmax(json)? };
    mixture(json, base, experts)
}

fn v2(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS_2);
    if json.flag("mlp_bias", false)? {
        return Err(json.unsupported("mlp_bias"));
    }
    // Hugging Face ignores this setting, but DeepSeek's own code omits the scale if it is set.
    if json.flag("norm_topk_prob", false)? {
        return Err(json.unsupported("norm_topk_prob"));
    }
    let groups = match json.text("topk_method", "greedy")? {
        "greedy" => None,
        "group_limited_greedy" => {
            Some(ExpertGroups { count: json.size("n_group")?, kept: json.size("topk_group")?, best: 1 })
        }
        _ => return Err(json.unsupported("topk_method")),
    };
    let scale = json.number("routed_scaling_factor", 1.0)?;
    let experts = Experts { renormalize: false, groups, scale, ..softmax(json)? };
    mixture(json, latent(json, true)?, experts)
}

fn v3(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    like_v3(&json.defaulting(&DEFAULTS_3))
}

fn like_v3(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.text("topk_method", "noaux_tc")? != "noaux_tc" {
        return Err(json.unsupported("topk_method"));
    }
    if json.text("scoring_func", "sigmoid")? != "sigmoid" {
        return Err(json.unsupported("scoring_func"));
    }
    let (experts, _) = mixtures::deepseek(json)?;
    mixture(json, latent(json, json.flag("rope_interleave", true)?)?, experts)
}

/// Settings like version 3's, with a limit on the number of keys per query.
fn sparse(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = like_v3(json)?;
    let most = json.size("index_topk")?;
    let n_ctx = base.n_ctx().min(most);
    Ok(base.with_n_ctx(n_ctx).with_most_keys(most))
}

/// Experts chosen by softmax, with all shared experts combined into one.
fn softmax(json: &HfConfig<'_>) -> Result<Experts, ConfigError> {
    if json.text("scoring_func", "softmax")? != "softmax" {
        return Err(json.unsupported("scoring_func"));
    }
    let (experts, _) = mixtures::deepseek_without_groups(json)?;
    Ok(Experts { router: RouterFn::Softmax, choice_bias: false, scale: 1.0, ..experts })
}

/// Adds experts in all layers except the first few.
fn mixture(json: &HfConfig<'_>, base: TransformerConfig, experts: Experts) -> Result<TransformerConfig, ConfigError> {
    if json.size_or("moe_layer_freq", 1)? != 1 {
        return Err(json.unsupported("moe_layer_freq"));
    }
    let first = json.size_or("first_k_dense_replace", 0)?;
    let dense = mixtures::dense_by_type(json, base.n_layers(), |layer| layer < first)?;
    let d_mlp = json.size("moe_intermediate_size")?;
    Ok(mixtures::with_experts(base, (experts, d_mlp), |layer| dense[layer]))
}

/// Llama's settings with latent attention.
fn latent(json: &HfConfig<'_>, adjacent_pairs: bool) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    if base.n_kv_heads() != base.n_heads() {
        return Err(json.unsupported("num_key_value_heads"));
    }
    let d_rope = json.size("qk_rope_head_dim")?;
    let d_head = json.size("qk_nope_head_dim")?.saturating_add(d_rope);
    let rotary = Rotary { adjacent_pairs, ..rope::read(json, d_rope, "rope_theta")? };
    let latent = Latent {
        q_rank: json.maybe_size("q_lora_rank")?,
        kv_rank: json.size("kv_lora_rank")?,
        d_rope,
        d_value: json.size("v_head_dim")?,
        // This epsilon is independent of the other norms' epsilon.
        eps: 1e-6,
    };
    let attn_scale = (d_head as f64).sqrt() / magnitude(json, &rotary)?.powi(2);
    Ok(base.with_d_head(d_head).with_positional(rotary).with_attn_scale(attn_scale).with_latent(latent))
}

/// Factor that YaRN applies to whole queries and keys, including the unrotated parts, if the file requests it.
fn magnitude(json: &HfConfig<'_>, rotary: &Rotary) -> Result<f64, ConfigError> {
    let newer = rope::parameters(json, "full_attention")?;
    let told = if newer.is_some() { newer } else { json.object("rope_scaling")? };
    let all = told.map_or(Ok(None), |told| told.maybe_number("mscale_all_dim"))?.unwrap_or(0.0);
    match rotary.scaling {
        RopeScaling::Yarn { factor, .. } if all != 0.0 && factor > 1.0 => Ok(0.1 * all * factor.ln() + 1.0),
        RopeScaling::None | RopeScaling::Yarn { .. } => Ok(1.0),
        _ if all == 0.0 => Ok(1.0),
        _ => Err(json.unsupported("rope_scaling")),
    }
}

fn of_v1(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights_with(c, json, mixtures::names(json)?)?;
    mixtures::add_shared(&mut table, c, "mlp.shared_experts", None);
    Ok(table)
}

fn of_v2(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("attention_bias", false)?;
    let biases = Biases { qkv: false, output: biased, mlp: false };
    let mut table = llama_like::weights_with(c, json, Names { mlp: mixtures::EXPERTS, biases, ..Names::LLAMA })?;
    mixtures::add_shared(&mut table, c, "mlp.shared_experts", Some("mlp.gate.e_score_correction_bias"));
    let Some(latent) = c.latent() else { return Ok(table) };
    let (nope, down) = (c.d_head() - latent.d_rope, latent.kv_rank + latent.d_rope);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let to = |part: &str| format!("blocks.{layer}.attn.{part}");
        if latent.q_rank.is_some() {
            table.linear(&to("W_Q_down"), &from("q_a_proj"), biased);
            table.linear(&to("W_Q"), &from("q_b_proj"), false);
            table.add(to("q_latent_norm.w"), from("q_a_layernorm.weight"), Layout::AsIs);
        }
        for (part, start) in [("KV_down", 0), ("K_rope", latent.kv_rank)] {
            let layout = Layout::Rows { start, of: down };
            table.add(to(&format!("W_{part}")), from("kv_a_proj_with_mqa.weight"), layout);
            if biased {
                table.add(to(&format!("b_{part}")), from("kv_a_proj_with_mqa.bias"), layout);
            }
        }
        table.add(to("kv_latent_norm.w"), from("kv_a_layernorm.weight"), Layout::AsIs);
        let (of, groups) = (nope + latent.d_value, c.n_heads());
        for (letter, start, take) in [("K", 0, nope), ("V", nope, latent.d_value)] {
            let layout = Layout::Grouped { start, take, of, groups };
            table.add(to(&format!("W_{letter}")), from("kv_b_proj.weight"), layout);
        }
    }
    Ok(table)
}
