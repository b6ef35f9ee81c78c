//! DistilBERT: BERT without token types and without a pooler.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::ActivationFn;
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "distilbert",
    architectures: &[
        "DistilBertForMaskedLM",
        "DistilBertModel",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertForQuestionAnswering",
    ],
    prefix: "distilbert.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let (d_model, n_heads) = (json.size("dim")?, json.size("n_heads")?);
    json.share("n_heads", d_model, n_heads)?;
    let (n_layers, n_ctx) = (json.layers("n_layers")?, json.size("max_position_embeddings")?);
    Ok(EncoderConfig {
        d_mlp: json.size("hidden_dim")?,
        activation: json.text("activation", "gelu")?.parse::<ActivationFn>()?,
        head_activation: json.text("activation", "gelu")?.parse::<ActivationFn>()?,
        token_types: 0,
        ..EncoderConfig::new(n_layers, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["position_ids"]);
    let embeddings = |part: &str| format!("distilbert.embeddings.{part}");
    table.add("embed.W_E", embeddings("word_embeddings.weight"), Layout::AsIs);
    table.add("embed.W_pos", embeddings("position_embeddings.weight"), Layout::AsIs);
    table.norm("embed.ln", &embeddings("LayerNorm"));
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("distilbert.transformer.layer.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        for (letter, name) in [("Q", "q_lin"), ("K", "k_lin"), ("V", "v_lin"), ("O", "out_lin")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attention.{name}")), true);
        }
        table.norm(&to("ln1"), &from("sa_layer_norm"));
        table.linear(&to("mlp.W_in"), &from("ffn.lin1"), true);
        table.linear(&to("mlp.W_out"), &from("ffn.lin2"), true);
        table.norm(&to("ln2"), &from("output_layer_norm"));
    }
    table.add("mlm_head.W", "vocab_transform.weight", Layout::Transposed);
    table.add("mlm_head.b", "vocab_transform.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "vocab_layer_norm");
    table.unembedding("vocab_projector.weight", json.flag("tie_word_embeddings", true)?);
    table.add("unembed.b_U", "vocab_projector.bias", Layout::AsIs);
    table.optional(&["mlm_head.", "unembed."]);
    Ok(table)
}
