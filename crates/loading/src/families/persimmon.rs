//! Persimmon: a projection fused per head, query and key layer norms, a plain MLP, and half of each head rotated.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{NormKind, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "persimmon",
    architectures: &["PersimmonForCausalLM", "PersimmonModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"hidden_act": "relu2", "rope_theta": 25_000.0, "max_position_embeddings": 16_384}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config_turning(json, 0.5)?;
    let by_head = QkNorm { kind: NormKind::LayerNorm, ..QkNorm::HEADS };
    Ok(base
        .with_gated_mlp(false)
        .with_norm(NormKind::LayerNorm)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_qk_norm(json.flag("qk_layernorm", true)?.then_some(by_head)))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("input_layernorm"));
        table.norm(&to("ln2"), &from("post_attention_layernorm"));
        for (start, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Grouped { start, take: 1, of: 3, groups: c.n_heads() };
            table.add(to(&format!("attn.W_{letter}")), from("self_attn.query_key_value.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("self_attn.query_key_value.bias"), layout);
        }
        if c.qk_norm().is_some() {
            table.norm(&to("attn.q_norm"), &from("self_attn.q_layernorm"));
            table.norm(&to("attn.k_norm"), &from("self_attn.k_layernorm"));
        }
        table.linear(&to("attn.W_O"), &from("self_attn.dense"), true);
        table.linear(&to("mlp.W_in"), &from("mlp.dense_h_to_4h"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.dense_4h_to_h"), true);
    }
    table.norm("ln_final", "model.final_layernorm");
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}
