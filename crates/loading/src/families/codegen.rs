//! CodeGen, MOSS and ProGen 2: GPT-J with a fused projection for queries, values and keys, split into as many parts as
//! there were training devices. MultiMolecule's version of ProGen 2 stores the projections separately.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, ResidualScheme, RopeScaling, Rotary, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static CODEGEN: Family = Family {
    name: "codegen",
    architectures: &["CodeGenForCausalLM", "CodeGenModel"],
    prefix: "transformer.",
    config: codegen,
    weights: |config, json| weights(config, json, 4),
};

pub(super) static MOSS: Family = Family {
    name: "moss",
    architectures: &["MossForCausalLM", "MossModel"],
    prefix: "transformer.",
    config: moss,
    weights: |config, json| weights(config, json, 4),
};

pub(super) static PROGEN: Family = Family {
    name: "progen",
    architectures: &["ProGenForCausalLM", "ProGenModel"],
    prefix: "transformer.",
    config: progen,
    weights: |config, json| weights(config, json, 8),
};

pub(super) static PROGEN_2: Family = Family {
    name: "progen2",
    architectures: &["ProGen2ForPreTraining", "ProGen2ForCausalLM", "ProGen2Model"],
    prefix: "model.",
    config: progen2,
    weights: progen2_weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"rotary_dim": 64, "n_positions": 2048}));

/// Defaults from ProGen's own code.
static DEFAULTS_PROGEN: LazyLock<Value> = LazyLock::new(|| json!({"rotary_dim": 32, "n_positions": 1024}));

/// Defaults from MultiMolecule's code.
static DEFAULTS_PROGEN_2: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 35, "hidden_size": 1536, "num_hidden_layers": 27, "num_attention_heads": 16, "rotary_dim": 48,
        "max_position_embeddings": 2048
    })
});

fn codegen(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // CodeGen 2 uses the same name but its own code, which splits the projection into eight parts.
    if json.get("auto_map").is_some() {
        return Err(json.unsupported("auto_map"));
    }
    let json = &json.defaulting(&DEFAULTS);
    like(json, json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?)
}

fn progen(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS_PROGEN);
    let width = if json.has("embed_dim") { "embed_dim" } else { "n_embd" };
    let (d_model, n_heads) = (json.size(width)?, json.size("n_head")?);
    json.share("n_head", d_model, n_heads)?;
    // The embedding and unembedding may have different vocabulary sizes.
    let tokens = |own: &str| json.size(if json.has(own) { own } else { "vocab_size" });
    let n_ctx = json.size("n_positions")?;
    let base = TransformerConfig::new(json.layers("n_layer")?, d_model, n_heads, tokens("vocab_size_emb")?, n_ctx);
    // A protein's text starts with `1` or `2`, which indicates the end from which the protein is read.
    like(json, base.with_d_vocab_out(tokens("vocab_size_lm_head")?).with_default_prepend_bos(false))
}

fn moss(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Quantized files (4 or 8 bits) have a different format.
    if json.maybe_size("wbits")?.is_some_and(|bits| bits < 16) {
        return Err(json.unsupported("wbits"));
    }
    let json = &json.defaulting(&DEFAULTS);
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?;
    like(json, base.with_default_prepend_bos(false))
}

fn progen2(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS_PROGEN_2);
    if !json.flag("scale_attn_weights", true)? {
        return Err(json.unsupported("scale_attn_weights"));
    }
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    let d_mlp = json.maybe_size("intermediate_size")?.unwrap_or(base.d_mlp());
    let positional = turning(json.maybe_size("rotary_dim")?.unwrap_or(base.d_head()).min(base.d_head()));
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(positional)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_activation(json.text("hidden_act", "gelu_new")?.parse::<ActivationFn>()?)
        .with_residual(ResidualScheme::Parallel)
        .with_default_prepend_bos(false))
}

/// Rotary embedding of adjacent pairs in the first `dim` coordinates.
fn turning(dim: usize) -> Positional {
    Positional::Rotary(Rotary { dim, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None })
}

fn like(json: &HfConfig<'_>, base: TransformerConfig) -> Result<TransformerConfig, ConfigError> {
    let dim = json.size("rotary_dim")?;
    let d_mlp = json.maybe_size("n_inner")?.unwrap_or(base.d_mlp());
    Ok(base
        .with_d_mlp(d_mlp)
        .with_positional(turning(dim))
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation_function", "gelu_new")?.parse::<ActivationFn>()?)
        .with_residual(ResidualScheme::Parallel))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>, parts: usize) -> Result<WeightTable, ConfigError> {
    json.share("n_head", c.n_heads(), parts)?;
    let derived =
        &[".attn.bias", ".attn.masked_bias", ".attn.causal_mask", ".attn.embed_positions", ".attn.scale_attn"];
    let mut table = WeightTable::new("", derived);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("ln_1"));
        table.norm(&to("ln2"), &from("ln_1"));
        for (start, letter) in ["Q", "V", "K"].into_iter().enumerate() {
            let layout = Layout::Grouped { start, take: 1, of: 3, groups: parts };
            table.add(to(&format!("attn.W_{letter}")), from("attn.qkv_proj.weight"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.out_proj"), false);
        table.linear(&to("mlp.W_in"), &from("mlp.fc_in"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.fc_out"), true);
    }
    table.norm("ln_final", "transformer.ln_f");
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    Ok(table)
}

fn progen2_weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embeddings.word_embeddings.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.decoder.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("layer_norm"));
        table.norm(&to("ln2"), &from("layer_norm"));
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attention.{name}")), false);
        }
        table.linear(&to("mlp.W_in"), &from("mlp.fc_in"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.fc_out"), true);
    }
    table.norm("ln_final", "model.layer_norm");
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    Ok(table)
}
