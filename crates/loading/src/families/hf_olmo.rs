//! OLMo 1 in its original format (`hf_olmo`), with fused projections and the names and settings of its training code.

use super::hf_config::HfConfig;
use super::{Family, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormDetails, NormKind, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "hf_olmo", architectures: &["OLMoForCausalLM"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Each field with its supported value and the training code's default.
    for (field, supported, absent) in [
        ("alibi", false, false),
        ("rope", true, false),
        ("include_bias", false, true),
        ("attention_layer_norm", false, false),
        ("norm_after", false, false),
        ("scale_logits", false, false),
    ] {
        if json.flag(field, absent)? != supported {
            return Err(json.unsupported(field));
        }
    }
    for (field, common) in [("block_type", "sequential"), ("activation_type", "swiglu")] {
        if json.text(field, common)? != common {
            return Err(json.unsupported(field));
        }
    }
    let affine = json.flag("layer_norm_with_affine", true)?;
    let norm = match (json.text("layer_norm_type", "default")?, affine) {
        ("default", true) => NormKind::LayerNorm,
        ("default", false) => NormKind::LayerNormPre,
        ("rms", true) => NormKind::Rms,
        ("rms", false) => NormKind::RmsPre,
        _ => return Err(json.unsupported("layer_norm_type")),
    };
    let (d_model, n_heads) = (json.size("d_model")?, json.size("n_heads")?);
    let d_head = json.share("n_heads", d_model, n_heads)?;
    // The embedding has more rows than the vocabulary.
    let rows = json.maybe_size("embedding_size")?.filter(|rows| *rows > 0);
    let d_vocab = rows.map_or_else(|| json.size("vocab_size"), Ok)?;
    let n_ctx = json.size_or("max_sequence_length", 1024)?;
    let base = TransformerConfig::new(json.layers("n_layers")?, d_model, n_heads, d_vocab, n_ctx);
    let one = json.flag("multi_query_attention", false)?;
    // The size covers both halves of the gated MLP.
    let hidden = match json.maybe_size("mlp_hidden_size")? {
        Some(hidden) => hidden,
        None => json.size_or("mlp_ratio", 4)?.saturating_mul(d_model),
    };
    Ok(base
        .with_kv_heads(json.maybe_size("n_kv_heads")?.unwrap_or(if one { 1 } else { n_heads }))
        .with_d_mlp(json.share("mlp_hidden_size", hidden, 2)?)
        .with_gated_mlp(true)
        .with_positional(rope::read(json, d_head, "rope_theta")?)
        .with_norm(norm)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_activation(ActivationFn::Silu)
        .with_qkv_clip(json.maybe_number("clip_qkv")?)
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.add("embed.W_E", "model.transformer.wte.weight", Layout::AsIs);
    let biased = json.flag("bias_for_layer_norm", false)? && c.norm() == NormKind::LayerNorm;
    let norm = |table: &mut WeightTable, norm: &str, name: &str| {
        if c.norm().has_weight() {
            table.add(format!("{norm}.w"), format!("{name}.weight"), Layout::AsIs);
        }
        if biased {
            table.add(format!("{norm}.b"), format!("{name}.bias"), Layout::AsIs);
        }
    };
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.transformer.blocks.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        norm(&mut table, &to("ln1"), &from("attn_norm"));
        norm(&mut table, &to("ln2"), &from("ff_norm"));
        llama_like::fuse_attention(&mut table, c, layer, &from("att_proj"), false);
        table.linear(&to("attn.W_O"), &from("attn_out"), false);
        for (part, start) in [("in", 0), ("gate", c.d_mlp())] {
            table.add(to(&format!("mlp.W_{part}")), from("ff_proj.weight"), Layout::Rows { start, of: 2 * c.d_mlp() });
        }
        table.linear(&to("mlp.W_out"), &from("ff_out"), false);
    }
    norm(&mut table, "ln_final", "model.transformer.ln_f");
    table.unembedding("model.transformer.ff_out.weight", json.flag("weight_tying", true)?);
    Ok(table)
}
