//! RITA protein models: GPT-2's blocks with rotary embedding instead of a position table.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, RopeScaling, Rotary, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "rita",
    architectures: &["RITAModelForCausalLM", "RITAModel"],
    prefix: "transformer.",
    config,
    weights,
};

/// Defaults from RITA's own code for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(
    || json!({"vocab_size": 26, "d_model": 768, "num_layers": 12, "num_heads": 12, "max_seq_len": 1024, "ff_ratio": 4}),
);

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = json.sizes(["num_layers", "d_model", "num_heads"], json.size("max_seq_len")?)?;
    let rotary = Rotary { dim: base.d_head(), base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
    let d_mlp = base.d_model().saturating_mul(json.size("ff_ratio")?);
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(rotary)
        .with_activation(ActivationFn::GeluNew)
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_embedding.inv_freq"]);
    table.add("embed.W_E", "transformer.embedding.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("attn_norm"));
        table.norm(&to("ln2"), &from("mlp_norm"));
        for (letter, name) in [("Q", "query"), ("K", "key"), ("V", "value"), ("O", "proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attention.{name}")), true);
        }
        table.linear(&to("mlp.W_in"), &from("mlp.0"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.2"), true);
    }
    table.norm("ln_final", "transformer.final_norm");
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
