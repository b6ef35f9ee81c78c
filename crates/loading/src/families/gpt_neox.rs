//! GPT-NeoX and Pythia.

use super::hf_config::HfConfig;
use super::{Family, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, ResidualScheme, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "gpt_neox",
    architectures: &["GPTNeoXForCausalLM", "GPTNeoXModel"],
    prefix: "gpt_neox.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    let share = match json.object("rope_parameters")? {
        Some(parameters) => parameters.number("partial_rotary_factor", json.number("rotary_pct", 0.25)?)?,
        None => json.number("rotary_pct", 0.25)?,
    };
    let rotary = rope::read(json, (share * base.d_head() as f64) as usize, "rotary_emb_base")?;
    Ok(base
        .with_d_mlp(json.size("intermediate_size")?)
        .with_positional(rotary)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_activation(json.text("hidden_act", "gelu")?.parse::<ActivationFn>()?)
        .with_residual(if json.flag("use_parallel_residual", true)? {
            ResidualScheme::Parallel
        } else {
            ResidualScheme::Sequential
        }))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("attention_bias", true)?;
    let derived = &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];
    let mut table = WeightTable::new("", derived);
    table.add("embed.W_E", "gpt_neox.embed_in.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("gpt_neox.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        for (norm, name) in [("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")] {
            table.add(to(&format!("{norm}.w")), from(&format!("{name}.weight")), Layout::AsIs);
            table.add(to(&format!("{norm}.b")), from(&format!("{name}.bias")), Layout::AsIs);
        }
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Grouped { start: part, take: 1, of: 3, groups: config.n_heads() };
            table.add(to(&format!("attn.W_{letter}")), from("attention.query_key_value.weight"), layout);
            if biased {
                table.add(to(&format!("attn.b_{letter}")), from("attention.query_key_value.bias"), layout);
            }
        }
        table.linear(&to("attn.W_O"), &from("attention.dense"), biased);
        table.linear(&to("mlp.W_in"), &from("mlp.dense_h_to_4h"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.dense_4h_to_h"), true);
    }
    table.add("ln_final.w", "gpt_neox.final_layer_norm.weight", Layout::AsIs);
    table.add("ln_final.b", "gpt_neox.final_layer_norm.bias", Layout::AsIs);
    let tied = json.flag("tie_word_embeddings", false)?;
    table.unembedding("embed_out.weight", tied);
    Ok(table)
}
