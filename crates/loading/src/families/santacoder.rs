//! SantaCoder in its original format: GPT-2 with queries separate from the single key/value head.

use super::Family;
use super::gpt2;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "santacoder", architectures: &["GPT2LMHeadCustomModel"], prefix: "transformer.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.text("attention_head_type", "multiquery")? != "multiquery" {
        return Err(json.unsupported("attention_head_type"));
    }
    let function = json.text("activation_function", "gelu_fast")?;
    Ok(gpt2::config(json)?.with_kv_heads(1).with_activation(function.parse::<ActivationFn>()?))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = gpt2::weights(c, json)?;
    for layer in 0..c.n_layers() {
        for (letter, name, layout) in [
            ("Q", "q_attn", Layout::AsIs),
            ("K", "kv_attn", Layout::Columns { part: 0, of: 2 }),
            ("V", "kv_attn", Layout::Columns { part: 1, of: 2 }),
        ] {
            for (kind, suffix) in [("W", "weight"), ("b", "bias")] {
                let from = format!("transformer.h.{layer}.attn.{name}.{suffix}");
                table.add(format!("blocks.{layer}.attn.{kind}_{letter}"), from, layout);
            }
        }
    }
    Ok(table)
}
