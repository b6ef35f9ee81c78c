//! LFM2: short convolutions in most layers and attention in the others, with a gated MLP or a mixture of experts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    AttentionConfig, Experts, Layers, MixerConfig, QkNorm, RouterFn, Settings, ShortConv, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static DENSE: Family = Family {
    name: "lfm2",
    architectures: &["Lfm2ForCausalLM", "Lfm2Model"],
    prefix: "model.",
    config: |json| dense(&json.defaulting(&DEFAULTS)),
    weights: |config, json| weights(config, &json.defaulting(&DEFAULTS)),
};

pub(super) static MIXTURE: Family = Family {
    name: "lfm2_moe",
    architectures: &["Lfm2MoeForCausalLM", "Lfm2MoeModel"],
    prefix: "model.",
    config: |json| mixture(&json.defaulting(&DEFAULTS_MIXTURE)),
    weights: |config, json| weights(config, &json.defaulting(&DEFAULTS_MIXTURE)),
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 65_536, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128_000, "norm_eps": 1e-5,
        "rope_theta": 1e6, "conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": true, "tie_word_embeddings": true
    })
});
/// Hugging Face's defaults for models with mixtures of experts.
static DEFAULTS_MIXTURE: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 65_536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128_000,
        "norm_eps": 1e-5, "rope_theta": 1e6, "conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4,
        "num_experts": 32, "use_expert_bias": true, "tie_word_embeddings": true
    })
});

fn dense(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let own = json.maybe_size("block_ff_dim")?;
    let mut d_mlp = own.map_or_else(|| json.size("intermediate_size"), Ok)?;
    if json.flag("block_auto_adjust_ff_dim", true)? {
        d_mlp = (2.0 * d_mlp as f64 / 3.0) as usize;
        if let Some(factor) = json.maybe_number("block_ffn_dim_multiplier")? {
            d_mlp = ((factor * d_mlp as f64) as usize).next_multiple_of(json.size("block_multiple_of")?.max(1));
        }
    }
    Ok(common(json)?.with_d_mlp(d_mlp))
}

fn mixture(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let experts = Experts {
        router: RouterFn::Sigmoid,
        renormalize: json.flag("norm_topk_prob", true)?,
        choice_bias: json.flag("use_expert_bias", true)?,
        scale: json.number("routed_scaling_factor", 1.0)?,
        ..Experts::new(json.size("num_experts")?, json.size("num_experts_per_tok")?)
    };
    let first = json.size_or("num_dense_layers", 0)?;
    let d_mlp = json.size("moe_intermediate_size")?;
    Ok(mixtures::with_experts(common(json)?, (experts, d_mlp), |layer| layer < first))
}

fn common(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let mixers = mixers(json, &base)?;
    Ok(base.with_mixers(mixers)?.with_eps(json.number("norm_eps", 1e-5)?).with_qk_norm(QkNorm::HEADS))
}

/// Mixers of the layers: attention where `layer_types` or `full_attn_idxs` specifies it, or everywhere if both are
/// absent.
fn mixers(json: &HfConfig<'_>, base: &TransformerConfig) -> Result<Vec<MixerConfig>, ConfigError> {
    let attention = MixerConfig::Attention(AttentionConfig::new(base.n_kv_heads(), base.d_head()));
    let conv = MixerConfig::ShortConvolution(ShortConv { width: json.size("conv_L_cache")? });
    if let Some(kinds) = json.per_layer("layer_types", base.n_layers())? {
        let of = |kind: &Value| match kind.as_str() {
            Some("conv") => Ok(conv.clone()),
            Some("full_attention") => Ok(attention.clone()),
            _ => Err(ConfigError::UnknownValue {
                field: "layer_types",
                given: kind.to_string(),
                known: "conv, full_attention",
            }),
        };
        return kinds.iter().map(of).collect();
    }
    let Some(listed) = json.list("full_attn_idxs")? else { return Ok(vec![attention; base.n_layers()]) };
    let listed: Option<Vec<u64>> = listed.iter().map(Value::as_u64).collect();
    let listed = listed.ok_or_else(|| json.unsupported("full_attn_idxs"))?;
    let of = |layer: usize| if listed.contains(&(layer as u64)) { &attention } else { &conv }.clone();
    Ok((0..base.n_layers()).map(of).collect())
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    let biased = json.flag("conv_bias", false)?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("operator_norm.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("ffn_norm.weight"), Layout::AsIs);
        if c.attends(layer) {
            for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
                table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), false);
            }
            table.add(to("attn.q_norm.w"), from("self_attn.q_layernorm.weight"), Layout::AsIs);
            table.add(to("attn.k_norm.w"), from("self_attn.k_layernorm.weight"), Layout::AsIs);
        } else {
            for (place, part) in ["B", "C", "x"].into_iter().enumerate() {
                let layout = Layout::Rows { start: place * c.d_model(), of: 3 * c.d_model() };
                table.add(to(&format!("conv.W_{part}")), from("conv.in_proj.weight"), layout);
                if biased {
                    table.add(to(&format!("conv.b_{part}")), from("conv.in_proj.bias"), layout);
                }
            }
            table.linear(&to("conv.W_O"), &from("conv.out_proj"), biased);
            table.add(to("conv.conv"), from("conv.conv.weight"), Layout::Filters);
            if biased {
                table.add(to("conv.conv_bias"), from("conv.conv.bias"), Layout::AsIs);
            }
        }
        let mut gated = |into: &str, name: &str| {
            for (part, own) in [("in", "w3"), ("gate", "w1"), ("out", "w2")] {
                table.linear(&to(&format!("{into}.W_{part}")), &from(&format!("{name}.{own}")), false);
            }
        };
        let Some(experts) = c.experts_of(layer) else {
            gated("mlp", "feed_forward");
            continue;
        };
        for expert in 0..experts.count {
            gated(&format!("mlp.experts.{expert}"), &format!("feed_forward.experts.{expert}"));
        }
        table.linear(&to("mlp.W_gate"), &from("feed_forward.gate"), false);
        if experts.choice_bias {
            table.add(to("mlp.choice_bias"), from("feed_forward.expert_bias"), Layout::AsIs);
        }
    }
    table.add("ln_final.w", "model.embedding_norm.weight", Layout::AsIs);
    let tied = json.flag("tie_embedding", json.flag("tie_word_embeddings", true)?)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
