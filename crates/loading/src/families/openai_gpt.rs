//! The original GPT: GPT-2 with norms after each residual addition and no final norm.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "openai-gpt",
    architectures: &["OpenAIGPTLMHeadModel", "OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size_or("n_positions", 512)?)?;
    let activation = match json.text("afn", "gelu")? {
        // The original GPT's `gelu` is the tanh approximation.
        "gelu" => ActivationFn::GeluNew,
        other => other.parse::<ActivationFn>()?,
    };
    Ok(base
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(activation)
        .with_residual(ResidualScheme::NormalizedSums)
        .with_no_final_norm(true)
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[".attn.bias", "position_ids"]);
    table.add("embed.W_E", "transformer.tokens_embed.weight", Layout::AsIs);
    table.add("pos_embed.W_pos", "transformer.positions_embed.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("ln_1"));
        table.norm(&to("ln2"), &from("ln_2"));
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Columns { part, of: 3 };
            table.add(to(&format!("attn.W_{letter}")), from("attn.c_attn.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("attn.c_attn.bias"), layout);
        }
        for (weight, name) in [("attn.?_O", "attn.c_proj"), ("mlp.?_in", "mlp.c_fc"), ("mlp.?_out", "mlp.c_proj")] {
            table.add(to(&weight.replace('?', "W")), from(&format!("{name}.weight")), Layout::AsIs);
            table.add(to(&weight.replace('?', "b")), from(&format!("{name}.bias")), Layout::AsIs);
        }
    }
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
