//! Qwen 1: Llama's architecture with GPT-2's names and a fused projection.

use super::hf_config::HfConfig;
use super::{Family, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "qwen", architectures: &["QWenLMHeadModel"], prefix: "", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if !json.flag("no_bias", true)? {
        return Err(json.unsupported("no_bias"));
    }
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = match json.maybe_size("kv_channels")? {
        Some(d_head) => d_head,
        None => json.share("num_attention_heads", d_model, n_heads)?,
    };
    // Beyond the trained length, Qwen's own code scales the rotary embedding with the text's length and scales queries
    // (`use_dynamic_ntk`, `use_logn_attn`). Up to `n_ctx`, the trained length, it does neither.
    let n_ctx = match json.maybe_size("seq_length")? {
        Some(trained) => trained,
        None => json.size("max_position_embeddings")?,
    };
    let base =
        TransformerConfig::new(json.layers("num_hidden_layers")?, d_model, n_heads, json.size("vocab_size")?, n_ctx);
    let turned = json.number("rotary_pct", 1.0)?;
    Ok(base
        .with_d_head(d_head)
        .with_d_mlp(json.size("intermediate_size")? / 2)
        .with_gated_mlp(true)
        .with_positional(rope::read(json, (turned * d_head as f64) as usize, "rotary_emb_base")?)
        .with_norm(NormKind::Rms)
        .with_eps(json.number("layer_norm_epsilon", 1e-6)?)
        .with_activation(ActivationFn::Silu)
        .with_attn_scale(if json.flag("scale_attn_weights", true)? { (d_head as f64).sqrt() } else { 1.0 })
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    let width = c.n_heads() * c.d_head();
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("ln_1.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("ln_2.weight"), Layout::AsIs);
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Rows { start: part * width, of: 3 * width };
            table.add(to(&format!("attn.W_{letter}")), from("attn.c_attn.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("attn.c_attn.bias"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.c_proj"), false);
        for (part, name) in [("in", "w1"), ("gate", "w2"), ("out", "c_proj")] {
            table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), false);
        }
    }
    table.add("ln_final.w", "transformer.ln_f.weight", Layout::AsIs);
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}
