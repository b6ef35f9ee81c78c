//! MiniMax M2: experts chosen by sigmoid scores plus a bias, partial rotary embedding, and query and key norms over all
//! heads at once.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{Experts, Layers, QkNorm, RouterFn, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "minimax_m2",
    architectures: &["MiniMaxM2ForCausalLM", "MiniMaxM2Model"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "rope_theta": 5e6, "head_dim": 128, "num_key_value_heads": 8, "num_local_experts": 256,
        "num_experts_per_tok": 8, "intermediate_size": 1536, "max_position_embeddings": 196_608
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    for (field, same) in [
        ("use_qk_norm", json.flag("use_qk_norm", true)?),
        ("use_routing_bias", json.flag("use_routing_bias", true)?),
        ("scoring_func", json.text("scoring_func", "sigmoid")? == "sigmoid"),
        ("qk_norm_type", json.text("qk_norm_type", "per_layer")? == "per_layer"),
        ("shared_intermediate_size", json.size_or("shared_intermediate_size", 0)? == 0),
        ("attn_type_list", json.list("attn_type_list")?.into_iter().flatten().all(|kind| *kind == json!(1))),
    ] {
        if !same {
            return Err(json.unsupported(field));
        }
    }
    let turned = match json.maybe_number("rotary_dim")? {
        Some(turned) => turned / json.size("head_dim")?.max(1) as f64,
        None => 1.0,
    };
    let experts = Experts {
        router: RouterFn::Sigmoid,
        choice_bias: true,
        ..Experts::new(json.size("num_local_experts")?, json.size("num_experts_per_tok")?)
    };
    Ok(llama_like::config_turning(json, turned)?
        .with_mixture(experts)
        .with_qk_norm(QkNorm::WHOLE)
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let (router, folder) = ("block_sparse_moe.gate", "block_sparse_moe.experts");
    let mlp = MlpNames::Experts { router, folder, parts: ["w3", "w1", "w2"] };
    let mut table = llama_like::weights_with(config, json, Names { mlp, ..Names::LLAMA })?;
    mixtures::add_shared(&mut table, config, "", Some("block_sparse_moe.e_score_correction_bias"));
    Ok(table)
}
