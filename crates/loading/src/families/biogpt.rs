//! BioGPT and XGLM: OPT with scaled embeddings and learned or sinusoidal positions.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::fairseq;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Settings, TransformerConfig};
use hooklens_model::encoder_decoder::Sinusoids;
use hooklens_model::error::ConfigError;

pub(super) static BIOGPT: Family = Family {
    name: "biogpt",
    architectures: &["BioGptForCausalLM", "BioGptModel"],
    prefix: "biogpt.",
    config: biogpt,
    weights: |config, json| {
        let mut table = weights(config, "biogpt");
        // The first two rows are for padding.
        table.add("pos_embed.W_pos", "biogpt.embed_positions.weight", Layout::AfterRows { skip: 2 });
        table.unembedding("output_projection.weight", json.flag("tie_word_embeddings", true)?);
        Ok(table)
    },
};

pub(super) static XGLM: Family = Family {
    name: "xglm",
    architectures: &["XGLMForCausalLM", "XGLMModel"],
    prefix: "model.",
    config: xglm,
    weights: |config, json| {
        let mut table = weights(config, "model");
        let padding = json.defaulting(&DEFAULTS).maybe_size("pad_token_id")?;
        table.sinusoids = Some(Sinusoids::Numbered { first: 2, blank: padding, ends_slowest: true });
        table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
        Ok(table)
    },
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"pad_token_id": 1}));

fn biogpt(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(HfConfig::SIZES, json.size_or("max_position_embeddings", 1024)?)?;
    let function = json.text("hidden_act", "gelu")?;
    // The layer norms use PyTorch's default epsilon, regardless of `layer_norm_eps`.
    scaled(json, function, base.with_d_mlp(json.size("intermediate_size")?))
}

fn xglm(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.flag("add_cross_attention", false)? {
        return Err(json.unsupported("add_cross_attention"));
    }
    let n_ctx = json.size_or("max_position_embeddings", 2048)?;
    let base = json.sizes(["num_layers", "d_model", "attention_heads"], n_ctx)?;
    let function = json.text("activation_function", "gelu")?;
    scaled(json, function, base.with_d_mlp(json.size("ffn_dim")?))
}

fn scaled(json: &HfConfig<'_>, function: &str, base: TransformerConfig) -> Result<TransformerConfig, ConfigError> {
    let embed_scale = json.flag("scale_embedding", true)?.then_some((base.d_model() as f64).sqrt());
    Ok(base.with_eps(1e-5).with_activation(function.parse::<ActivationFn>()?).with_embed_scale(embed_scale))
}

fn weights(config: &TransformerConfig, root: &str) -> WeightTable {
    let mut table = WeightTable::new("", &["embed_positions.weights"]);
    table.add("embed.W_E", format!("{root}.embed_tokens.weight"), Layout::AsIs);
    fairseq::layers(&mut table, config, root, true);
    table.norm("ln_final", &format!("{root}.layer_norm"));
    table
}
