//! MPT: ALiBi positions, layer norms and projections without biases.

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::config::{ActivationFn, Positional, TransformerConfig};
use crate::error::ConfigError;
use crate::weight_files::{Layout, WeightTable};

pub(super) static FAMILY: Family = Family {
    name: "mpt",
    architectures: &["MptForCausalLM", "MPTForCausalLM", "MptModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layers", "d_model", "n_heads"], json.size_or("max_seq_len", 2048)?)?;
    let (mut attn_scale, mut qkv_clip) = (base.attn_scale, None);
    if let Some(attention) = json.object("attn_config")? {
        let kind = attention.text("attn_type", "multihead_attention")?;
        if !["multihead_attention", "multiquery_attention"].contains(&kind) {
            return Err(attention.unsupported("attn_type"));
        }
        if let Some(scale) = attention.maybe_number("softmax_scale")? {
            // Scores are divided by the inverse, which zero has not.
            if scale <= 0.0 {
                return Err(attention.unsupported("softmax_scale"));
            }
            attn_scale = 1.0 / scale;
        }
        qkv_clip = attention.maybe_number("clip_qkv")?.filter(|clip| *clip != 0.0);
        if qkv_clip.is_some_and(|clip| clip < 0.0) {
            return Err(attention.unsupported("clip_qkv"));
        }
    }
    Ok(TransformerConfig {
        // Whatever `expansion_ratio` says.
        d_mlp: base.d_model.saturating_mul(4),
        eps: json.number("layer_norm_epsilon", 1e-5)?,
        activation: ActivationFn::Gelu,
        positional: Positional::Alibi,
        attn_scale,
        qkv_clip,
        default_prepend_bos: false,
        ..base
    })
}

/// Settings that MPT's first code applies and that of transformers, as here, does not, where they differ from what both
/// compute.
pub(super) fn ignored(json: &HfConfig<'_>) -> Result<Vec<String>, ConfigError> {
    let usual = [
        ("no_bias", json!(true)),
        ("logit_scale", json!(null)),
        ("norm_type", json!("low_precision_layernorm")),
        ("expansion_ratio", json!(4)),
    ];
    let usual_of_attention = [
        ("attn_type", json!("multihead_attention")),
        ("alibi", json!(true)),
        ("alibi_bias_max", json!(8)),
        ("prefix_lm", json!(false)),
        ("qk_ln", json!(false)),
        ("qk_gn", json!(false)),
        ("attn_uses_sequence_id", json!(false)),
        ("rope", json!(false)),
        ("sliding_window_size", json!(-1)),
    ];
    let mut told = Vec::new();
    let mut compare = |json: &HfConfig<'_>, within: &str, usual: &[(&str, Value)]| {
        for (field, usual) in usual {
            let Some(value) = json.get(field) else { continue };
            let same = match (value.as_f64(), usual.as_f64()) {
                (Some(value), Some(usual)) => value == usual,
                _ => value == usual || (*field == "norm_type" && value == "layernorm"),
            };
            if !same {
                told.push(format!("{within}{field} = {value}, which transformers' MPT does not apply"));
            }
        }
    };
    compare(json, "", &usual);
    if let Some(attention) = json.object("attn_config")? {
        compare(&attention, "attn_config.", &usual_of_attention);
    }
    Ok(told)
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    let width = c.n_heads * c.d_head;
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..c.n_layers {
        let from = |part: &str| format!("transformer.blocks.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("norm_1.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("norm_2.weight"), Layout::AsIs);
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Rows { start: part * width, of: 3 * width };
            table.add(to(&format!("attn.W_{letter}")), from("attn.Wqkv.weight"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.out_proj"), false);
        table.linear(&to("mlp.W_in"), &from("ffn.up_proj"), false);
        table.linear(&to("mlp.W_out"), &from("ffn.down_proj"), false);
    }
    table.add("ln_final.w", "transformer.norm_f.weight", Layout::AsIs);
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
