//! Falcon: the 7B model, whose heads share one key/value head; later models, in which each group of heads shares one;
//! and Falcon-RW, with ALiBi instead of rotary embedding. Also reads configurations in the format of the original
//! code, which was released with the first models.

use super::hf_config::HfConfig;
use super::{Family, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "falcon",
    architectures: &["FalconForCausalLM", "FalconModel", "RWForCausalLM", "RWModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let n_ctx = json.size_or("max_position_embeddings", 2048)?;
    let first = is_first(json);
    let names = if first { ["n_layer", "hidden_size", "n_head"] } else { HfConfig::SIZES };
    let base = json.sizes(names, n_ctx)?;
    let later = is_later(json)?;
    let groups = if first { "n_head_kv" } else { "num_kv_heads" };
    let n_kv_heads = match (later, json.flag("multi_query", !first)?) {
        (true, _) => json.maybe_size(groups)?.unwrap_or(base.n_heads()),
        (false, true) => 1,
        (false, false) => base.n_heads(),
    };
    let d_mlp = json.maybe_size("ffn_hidden_size")?.unwrap_or(base.d_mlp());
    let positional = match json.flag("alibi", false)? {
        true => Positional::ScaledAlibi,
        false => Positional::Rotary(rope::read(json, base.d_head(), "rope_theta")?),
    };
    Ok(base
        .with_kv_heads(n_kv_heads)
        .with_d_mlp(d_mlp)
        .with_positional(positional)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation", "gelu")?.parse::<ActivationFn>()?)
        .with_residual(if later || json.flag("parallel_attn", !first)? {
            ResidualScheme::Parallel
        } else {
            ResidualScheme::Sequential
        })
        .with_default_prepend_bos(false))
}

/// Whether the configuration uses the format of the original Falcon code (released with the first models), which has
/// its own field names and defaults.
fn is_first(json: &HfConfig<'_>) -> bool {
    json.architecture().starts_with("RW")
}

/// Whether groups of heads share key/value heads.
fn is_later(json: &HfConfig<'_>) -> Result<bool, ConfigError> {
    if is_first(json) { Ok(json.get("n_head_kv").is_some()) } else { json.flag("new_decoder_architecture", false) }
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("bias", false)?;
    let later = is_later(json)?;
    let two_norms = later && json.maybe_size("num_ln_in_parallel_attn")?.is_none_or(|count| count == 2);
    let (ln1, ln2) = match (two_norms, c.residual() == ResidualScheme::Parallel) {
        (true, _) => ("ln_attn", "ln_mlp"),
        (false, true) => ("input_layernorm", "input_layernorm"),
        (false, false) => ("input_layernorm", "post_attention_layernorm"),
    };
    let (width, group) = (c.n_heads() * c.d_head(), c.n_heads() / c.n_kv_heads());
    let fused = |letter: &str| match (later, c.n_kv_heads(), letter) {
        (true, groups, letter) => {
            let (start, take) = match letter {
                "Q" => (0, group),
                "K" => (group, 1),
                _ => (group + 1, 1),
            };
            Layout::Grouped { start, take, of: group + 2, groups }
        }
        (false, kv, letter) if kv == c.n_heads() => {
            let start = ["Q", "K", "V"].iter().position(|own| *own == letter).unwrap_or(0);
            Layout::Grouped { start, take: 1, of: 3, groups: c.n_heads() }
        }
        (false, _, letter) => {
            let start = match letter {
                "Q" => 0,
                "K" => width,
                _ => width + c.d_head(),
            };
            Layout::Rows { start, of: width + 2 * c.d_head() }
        }
    };
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "transformer.word_embeddings.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from(ln1));
        table.norm(&to("ln2"), &from(ln2));
        for letter in ["Q", "K", "V"] {
            let name = from("self_attention.query_key_value");
            table.add(to(&format!("attn.W_{letter}")), format!("{name}.weight"), fused(letter));
            if biased {
                table.add(to(&format!("attn.b_{letter}")), format!("{name}.bias"), fused(letter));
            }
        }
        table.linear(&to("attn.W_O"), &from("self_attention.dense"), biased);
        table.linear(&to("mlp.W_in"), &from("mlp.dense_h_to_4h"), biased);
        table.linear(&to("mlp.W_out"), &from("mlp.dense_4h_to_h"), biased);
    }
    table.norm("ln_final", "transformer.ln_f");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
