//! CTRL: scaled token embeddings, sinusoidal positions, and plain pre-norm blocks.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Settings, TransformerConfig};
use hooklens_model::encoder_decoder::Sinusoids;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "ctrl", architectures: &["CTRLLMHeadModel", "CTRLModel"], prefix: "transformer.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 246_534, "n_positions": 256, "n_embd": 1280, "dff": 8192, "n_layer": 48, "n_head": 16
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?;
    let embed_scale = (base.d_model() as f64).sqrt();
    Ok(base
        .with_d_mlp(json.size("dff")?)
        .with_eps(1e-6)
        .with_activation(ActivationFn::Relu)
        .with_embed_scale(embed_scale)
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.sinusoids = Some(Sinusoids::Numbered { first: 0, blank: None, ends_slowest: false });
    table.add("embed.W_E", "transformer.w.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("layernorm1"));
        table.norm(&to("ln2"), &from("layernorm2"));
        for (letter, name) in [("Q", "Wq"), ("K", "Wk"), ("V", "Wv"), ("O", "dense")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("multi_head_attention.{name}")), true);
        }
        table.linear(&to("mlp.W_in"), &from("ffn.0"), true);
        table.linear(&to("mlp.W_out"), &from("ffn.2"), true);
    }
    table.norm("ln_final", "transformer.layernorm");
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    Ok(table)
}
