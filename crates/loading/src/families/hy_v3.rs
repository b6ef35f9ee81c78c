//! Hunyuan 3: Qwen 3's attention and DeepSeek V3's expert routing, under Hunyuan's own names.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "hy_v3", architectures: &["HYV3ForCausalLM", "HYV3Model"], prefix: "model.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 120_832, "hidden_size": 4096, "intermediate_size": 13_312, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5, "rope_theta": 11_158_840.0, "num_experts": 192, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    if json.flag("mlp_bias", false)? {
        return Err(json.unsupported("mlp_bias"));
    }
    let base = llama_like::config(json)?;
    let base = base.with_qk_norm(QkNorm::HEADS).with_default_prepend_bos(false);
    let count = if json.has("num_local_experts") { "num_local_experts" } else { "num_experts" };
    let d_mlp = json.size("moe_intermediate_size")?;
    let (count, per_token) = (json.size(count)?, json.size("num_experts_per_tok")?);
    let shared = json.size_or("num_shared_experts", 0)?;
    let experts = Experts {
        scale: json.needed_number("router_scaling_factor")?,
        ..mixtures::by_sigmoids(count, per_token, shared, d_mlp)
    };
    let first = json.size_or("first_k_dense_replace", 1)?;
    let dense = mixtures::dense_by_type(json, base.n_layers(), |layer| layer < first)?;
    Ok(mixtures::with_experts(base, (experts, d_mlp), |layer| dense[layer]))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let parts = ["up_proj", "gate_proj", "down_proj"];
    let mlp = MlpNames::Experts { router: "mlp.router.gate", folder: "mlp.experts", parts };
    let mut table = llama_like::weights_with(c, json, Names { mlp, ..mixtures::names(json)? })?;
    mixtures::add_shared(&mut table, c, "mlp.shared_mlp", Some("mlp.expert_bias"));
    Ok(table)
}
