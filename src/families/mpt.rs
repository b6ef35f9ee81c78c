//! MPT: ALiBi positions, layer norms and projections without biases.

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
    // What its first code had and that of transformers passes over.
    if !json.flag("no_bias", true)? {
        return Err(json.unsupported("no_bias"));
    }
    if json.get("logit_scale").is_some() {
        return Err(json.unsupported("logit_scale"));
    }
    if !["low_precision_layernorm", "layernorm"].contains(&json.text("norm_type", "layernorm")?) {
        return Err(json.unsupported("norm_type"));
    }
    let (mut attn_scale, mut qkv_clip) = (base.attn_scale, None);
    if let Some(attention) = json.object("attn_config")? {
        for (field, common) in
            [("alibi", true), ("prefix_lm", false), ("qk_ln", false), ("attn_uses_sequence_id", false), ("rope", false)]
        {
            if attention.flag(field, common)? != common {
                return Err(attention.unsupported(field));
            }
        }
        if attention.text("attn_type", "multihead_attention")? != "multihead_attention" {
            return Err(attention.unsupported("attn_type"));
        }
        // Its first code has slopes of this, that of transformers those of 8.
        if attention.number("alibi_bias_max", 8.0)? != 8.0 {
            return Err(attention.unsupported("alibi_bias_max"));
        }
        if let Some(scale) = attention.maybe_number("softmax_scale")? {
            attn_scale = 1.0 / scale;
        }
        qkv_clip = attention.maybe_number("clip_qkv")?.filter(|clip| *clip != 0.0);
    }
    Ok(TransformerConfig {
        d_mlp: json.size_or("expansion_ratio", 4)?.saturating_mul(base.d_model),
        eps: json.number("layer_norm_epsilon", 1e-5)?,
        activation: ActivationFn::Gelu,
        positional: Positional::Alibi,
        attn_scale,
        qkv_clip,
        default_prepend_bos: false,
        ..base
    })
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
