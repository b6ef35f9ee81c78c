//! GPT-NeoX Japanese: GPT-NeoX with sequential attention and MLP, and no biases except in the last layer's attention.

use super::hf_config::HfConfig;
use super::{Family, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "gpt_neox_japanese",
    architectures: &["GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseModel"],
    prefix: "gpt_neox_japanese.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(HfConfig::SIZES, json.size_or("max_position_embeddings", 2048)?)?;
    let share = match json.object("rope_parameters")? {
        Some(parameters) => parameters.number("partial_rotary_factor", json.number("rotary_pct", 1.0)?)?,
        None => json.number("rotary_pct", 1.0)?,
    };
    let times = json.number("intermediate_multiple_size", 4.0)?;
    let d_mlp = (times * base.d_model() as f64) as usize;
    let rotary = rope::read(json, (share * base.d_head() as f64) as usize, "rotary_emb_base")?;
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(rotary)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_activation(json.text("hidden_act", "gelu")?.parse::<ActivationFn>()?)
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[".rotary_emb.inv_freq"]);
    table.add("embed.W_E", "gpt_neox_japanese.embed_in.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("gpt_neox_japanese.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("input_layernorm"));
        table.norm(&to("ln2"), &from("post_attention_layernorm"));
        for (start, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Grouped { start, take: 1, of: 3, groups: c.n_heads() };
            table.add(to(&format!("attn.W_{letter}")), from("attention.query_key_value.weight"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attention.dense"), false);
        if layer + 1 == c.n_layers() {
            table.add(to("attn.b_O"), from("attention.dense_bias"), Layout::AsIs);
        }
        table.linear(&to("mlp.W_in"), &from("mlp.dense_h_to_4h"), false);
        table.linear(&to("mlp.W_out"), &from("mlp.dense_4h_to_h"), false);
    }
    table.norm("ln_final", "gpt_neox_japanese.final_layer_norm");
    table.unembedding("embed_out.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
