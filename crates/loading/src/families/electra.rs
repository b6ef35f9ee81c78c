//! ELECTRA: BERT whose embeddings may be narrower than the residual stream. The generator has a masked-token head; the
//! discriminator's head is not read.

use super::hf_config::HfConfig;
use super::{Family, bert};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::ActivationFn;
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "electra",
    architectures: &[
        "ElectraForMaskedLM",
        "ElectraForPreTraining",
        "ElectraModel",
        "ElectraForSequenceClassification",
        "ElectraForTokenClassification",
        "ElectraForQuestionAnswering",
    ],
    prefix: "electra.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let base = bert::config(json)?;
    let width = json.size_or("embedding_size", 128)?;
    let d_embed = (width != base.d_model).then_some(width);
    // The head has its own activation function.
    Ok(EncoderConfig { d_embed, head_activation: ActivationFn::Gelu, ..base })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::body(config, "electra", Layout::AsIs);
    table.remove("pooler.W");
    table.remove("pooler.b");
    if config.d_embed.is_some() {
        table.linear("embed.W_proj", "electra.embeddings_project", true);
    }
    table.add("mlm_head.W", "generator_predictions.dense.weight", Layout::Transposed);
    table.add("mlm_head.b", "generator_predictions.dense.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "generator_predictions.LayerNorm");
    table.unembedding("generator_lm_head.weight", json.flag("tie_word_embeddings", true)?);
    table.add("unembed.b_U", "generator_lm_head.bias", Layout::AsIs);
    table.optional(&["mlm_head.", "unembed."]);
    Ok(table)
}
