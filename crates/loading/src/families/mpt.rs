//! MPT: ALiBi positions, and layer norms and projections without biases.

use serde_json::Value;

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mpt",
    architectures: &["MptForCausalLM", "MPTForCausalLM", "MptModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layers", "d_model", "n_heads"], json.size_or("max_seq_len", 2048)?)?;
    // MPT's original code supports these; transformers reads but ignores them.
    if !json.flag("no_bias", true)? {
        return Err(json.unsupported("no_bias"));
    }
    if !["low_precision_layernorm", "layernorm"].contains(&json.text("norm_type", "layernorm")?) {
        return Err(json.unsupported("norm_type"));
    }
    let (mut attn_scale, mut qkv_clip, mut alibi_bias_max) = (base.attn_scale(), None, base.alibi_bias_max());
    if let Some(attention) = json.object("attn_config")? {
        for (field, supported) in [("alibi", true), ("qk_ln", false), ("qk_gn", false), ("rope", false)] {
            if attention.flag(field, supported)? != supported {
                return Err(attention.unsupported(field));
            }
        }
        if attention.text("attn_type", "multihead_attention")? != "multihead_attention" {
            return Err(attention.unsupported("attn_type"));
        }
        // Transformers always uses 8.
        alibi_bias_max = attention.number("alibi_bias_max", alibi_bias_max)?;
        if let Some(scale) = attention.maybe_number("softmax_scale")? {
            // Scores are divided by the inverse of this scale, which does not exist for zero.
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
    let d_mlp = json.size_or("expansion_ratio", 4)?.saturating_mul(base.d_model());
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(Positional::Alibi)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(ActivationFn::Gelu)
        .with_alibi_bias_max(alibi_bias_max)
        .with_attn_scale(attn_scale)
        .with_qkv_clip(qkv_clip)
        .with_default_prepend_bos(false))
}

/// Scale of the logits, which transformers ignores.
fn logit_scale(json: &HfConfig<'_>, d_model: usize) -> Result<Option<f64>, ConfigError> {
    match json.get("logit_scale").and_then(Value::as_str) {
        Some("inv_sqrt_d_model") => Ok(Some((d_model as f64).powf(-0.5))),
        Some(_) => Err(json.unsupported("logit_scale")),
        None => json.maybe_number("logit_scale"),
    }
}

/// Settings that have no effect on a single text.
pub(super) fn ignored(json: &HfConfig<'_>) -> Result<Vec<String>, ConfigError> {
    let Some(attention) = json.object("attn_config")? else { return Ok(Vec::new()) };
    let mut ignored = Vec::new();
    for (field, what) in [
        ("prefix_lm", "attention to a prefix is causal, not bidirectional"),
        ("attn_uses_sequence_id", "texts are not packed into one row"),
    ] {
        if attention.flag(field, false)? {
            ignored.push(format!("attn_config.{field}: {what}"));
        }
    }
    Ok(ignored)
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    let width = c.n_heads() * c.d_head();
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
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
    if let Some(scale) = logit_scale(json, c.d_model())? {
        table.scale("ln_final.w", scale);
    }
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
