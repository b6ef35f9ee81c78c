//! InternLM 1 to 3: Llama with biases; in version 2, queries, keys and values are fused per group.

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Positional, RopeScaling, Rotary, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static ONE: Family = Family {
    name: "internlm",
    architectures: &["InternLMForCausalLM", "InternLMModel"],
    prefix: "model.",
    config: one,
    weights: |config, json| {
        let biased = json.flag("bias", true)?;
        let biases = Biases { qkv: biased, output: biased, mlp: false };
        llama_like::weights_with(config, json, Names { biases, ..Names::LLAMA })
    },
};

pub(super) static TWO: Family = Family {
    name: "internlm2",
    architectures: &["InternLM2ForCausalLM", "InternLM2Model"],
    prefix: "model.",
    config: llama_like::config,
    weights: two,
};

pub(super) static THREE: Family = Family {
    name: "internlm3",
    architectures: &["InternLM3ForCausalLM", "InternLM3Model"],
    prefix: "model.",
    config: llama_like::config,
    weights: |config, json| {
        // Names used by transformers 5.
        let qkv = json.flag("qkv_bias", json.flag("attention_bias", false)?)?;
        let rest = json.flag("bias", json.flag("mlp_bias", false)?)?;
        let biases = Biases { qkv, output: rest, mlp: rest };
        llama_like::weights_with(config, json, Names { biases, ..Names::LLAMA })
    },
};

fn one(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let Some(told) = json.object("rotary")? else { return Ok(base) };
    let scaling = match told.text("type", "dynamic")? {
        "origin" => RopeScaling::None,
        "dynamic" => {
            let factor = told.number("scaling_factor", 1.0)?;
            RopeScaling::Dynamic { factor, original_context: base.n_ctx() }
        }
        _ => return Err(json.unsupported("rotary")),
    };
    let (dim, turn) = (base.d_head(), told.number("base", 10_000.0)?);
    let positional = Positional::Rotary(Rotary { dim, base: turn, adjacent_pairs: false, scaling });
    Ok(base.with_positional(positional))
}

fn two(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("bias", true)?;
    let group = c.n_heads() / c.n_kv_heads();
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.tok_embeddings.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("attention_norm.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("ffn_norm.weight"), Layout::AsIs);
        for (letter, start, take) in [("Q", 0, group), ("K", group, 1), ("V", group + 1, 1)] {
            let layout = Layout::Grouped { start, take, of: group + 2, groups: c.n_kv_heads() };
            table.add(to(&format!("attn.W_{letter}")), from("attention.wqkv.weight"), layout);
            if biased {
                table.add(to(&format!("attn.b_{letter}")), from("attention.wqkv.bias"), layout);
            }
        }
        table.linear(&to("attn.W_O"), &from("attention.wo"), biased);
        for (part, name) in [("gate", "w1"), ("in", "w3"), ("out", "w2")] {
            table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("feed_forward.{name}")), false);
        }
    }
    table.add("ln_final.w", "model.norm.weight", Layout::AsIs);
    table.unembedding("output.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}
