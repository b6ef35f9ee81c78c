//! SantaCoder and StarCoder 1: GPT-2 with multi-query attention.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "gpt_bigcode",
    architectures: &["GPTBigCodeForCausalLM", "GPTBigCodeModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?;
    let scaled = json.flag("scale_attn_weights", true)?;
    let kv_heads = if json.flag("multi_query", true)? { 1 } else { base.n_heads() };
    let d_mlp = json.maybe_size("n_inner")?.unwrap_or(base.d_mlp());
    let attn_scale = if scaled { (base.d_head() as f64).sqrt() } else { 1.0 };
    Ok(base
        .with_kv_heads(kv_heads)
        .with_d_mlp(d_mlp)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation_function", "gelu_pytorch_tanh")?.parse::<ActivationFn>()?)
        .with_attn_scale(attn_scale))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[".attn.bias", ".attn.masked_bias"]);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    table.add("pos_embed.W_pos", "transformer.wpe.weight", Layout::AsIs);
    let width = c.n_heads() * c.d_head();
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("ln_1"));
        table.norm(&to("ln2"), &from("ln_2"));
        for (start, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = match c.n_kv_heads() {
                1 => Layout::Rows { start: [0, width, width + c.d_head()][start], of: width + 2 * c.d_head() },
                _ => Layout::Grouped { start, take: 1, of: 3, groups: c.n_heads() },
            };
            table.add(to(&format!("attn.W_{letter}")), from("attn.c_attn.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("attn.c_attn.bias"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.c_proj"), true);
        table.linear(&to("mlp.W_in"), &from("mlp.c_fc"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.c_proj"), true);
    }
    table.norm("ln_final", "transformer.ln_f");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
