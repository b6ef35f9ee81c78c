//! BERT, and the many sentence encoders that share its architecture (MiniLM, BGE, E5, GTE).

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "bert",
    architectures: &[
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertModel",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
    prefix: "bert.",
    config,
    weights,
};

pub(super) fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    for field in ["is_decoder", "add_cross_attention"] {
        if json.flag(field, false)? {
            return Err(json.unsupported(field));
        }
    }
    if json.text("position_embedding_type", "absolute")? != "absolute" {
        return Err(json.unsupported("position_embedding_type"));
    }
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    json.share("num_attention_heads", d_model, n_heads)?;
    let (n_layers, n_ctx) = (json.layers("num_hidden_layers")?, json.size("max_position_embeddings")?);
    Ok(EncoderConfig {
        d_mlp: json.size("intermediate_size")?,
        eps: json.number("layer_norm_eps", 1e-12)?,
        activation: json.text("hidden_act", "gelu")?.parse::<ActivationFn>()?,
        head_activation: json.text("hidden_act", "gelu")?.parse::<ActivationFn>()?,
        token_types: json.size_or("type_vocab_size", 2)?,
        ..EncoderConfig::new(n_layers, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = body(config, "bert", Layout::AsIs);
    table.add("mlm_head.W", "cls.predictions.transform.dense.weight", Layout::Transposed);
    table.add("mlm_head.b", "cls.predictions.transform.dense.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "cls.predictions.transform.LayerNorm");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("cls.predictions.decoder.weight", tied);
    table.add("unembed.b_U", "cls.predictions.bias", Layout::AsIs);
    if !tied {
        table.twins.push(("cls.predictions.decoder.bias".into(), "cls.predictions.bias".into()));
    }
    table.add("nsp_head.W", "cls.seq_relationship.weight", Layout::Transposed);
    table.add("nsp_head.b", "cls.seq_relationship.bias", Layout::AsIs);
    table.optional(&["mlm_head.", "unembed.", "nsp_head.", "pooler."]);
    Ok(table)
}

/// Weight table of the embedding norm and of those embeddings that the model has (token, position, type).
pub(super) fn embedding(config: &EncoderConfig, base: &str, positions: Layout) -> WeightTable {
    let mut table = WeightTable::new("", &["position_ids", "predictions.decoder.bias", "lm_head.decoder.bias"]);
    // Names of norm parameters in the first checkpoints, which were converted from TensorFlow.
    table.aliases = &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];
    let embeddings = |part: &str| format!("{base}.embeddings.{part}");
    table.add("embed.W_E", embeddings("word_embeddings.weight"), Layout::AsIs);
    if config.positional == Positional::Learned {
        table.add("embed.W_pos", embeddings("position_embeddings.weight"), positions);
    }
    if config.token_types > 0 {
        table.add("embed.W_token_type", embeddings("token_type_embeddings.weight"), Layout::AsIs);
    }
    if config.embed_norm {
        table.norm("embed.ln", &embeddings("LayerNorm"));
    }
    table
}

/// Weight table of the embeddings, blocks and pooler. After the prefix `base`, BERT and RoBERTa use the same names.
pub(super) fn body(config: &EncoderConfig, base: &str, positions: Layout) -> WeightTable {
    let mut table = embedding(config, base, positions);
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("{base}.encoder.layer.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        for (letter, name) in [("Q", "query"), ("K", "key"), ("V", "value")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attention.self.{name}")), true);
        }
        table.linear(&to("attn.W_O"), &from("attention.output.dense"), true);
        table.norm(&to("ln1"), &from("attention.output.LayerNorm"));
        table.linear(&to("mlp.W_in"), &from("intermediate.dense"), true);
        table.linear(&to("mlp.W_out"), &from("output.dense"), true);
        table.norm(&to("ln2"), &from("output.LayerNorm"));
    }
    table.add("pooler.W", format!("{base}.pooler.dense.weight"), Layout::Transposed);
    table.add("pooler.b", format!("{base}.pooler.dense.bias"), Layout::AsIs);
    table
}
