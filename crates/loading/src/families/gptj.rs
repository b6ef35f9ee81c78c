//! GPT-J: parallel attention and MLP after one norm, with rotary embedding of adjacent pairs.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, ResidualScheme, RopeScaling, Rotary, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "gptj", architectures: &["GPTJForCausalLM", "GPTJModel"], prefix: "transformer.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"rotary_dim": 64}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?;
    let dim = json.size("rotary_dim")?;
    let d_mlp = json.maybe_size("n_inner")?.unwrap_or(base.d_mlp());
    let rotary = Rotary { dim, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(rotary)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation_function", "gelu_new")?.parse::<ActivationFn>()?)
        .with_residual(ResidualScheme::Parallel))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let derived = &[".attn.bias", ".attn.masked_bias", ".attn.embed_positions"];
    let mut table = WeightTable::new("", derived);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("ln_1"));
        table.norm(&to("ln2"), &from("ln_1"));
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attn.{name}")), false);
        }
        table.linear(&to("mlp.W_in"), &from("mlp.fc_in"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.fc_out"), true);
    }
    table.norm("ln_final", "transformer.ln_f");
    let tied = json.flag("tie_word_embeddings", false)?;
    table.unembedding("lm_head.weight", tied);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    Ok(table)
}
