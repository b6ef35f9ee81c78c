//! RoBERTa, XLM-RoBERTa and CamemBERT: BERT with position numbers that start after the padding token's id.

use super::hf_config::HfConfig;
use super::{Family, bert};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::ActivationFn;
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "roberta",
    architectures: &[
        "RobertaForMaskedLM",
        "RobertaModel",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaForQuestionAnswering",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaForQuestionAnswering",
        "XLMRobertaModel",
        "CamembertForMaskedLM",
        "CamembertModel",
        "CamembertForSequenceClassification",
        "CamembertForTokenClassification",
    ],
    prefix: "roberta.",
    config,
    weights,
};

/// Number of rows in the position table that no token uses.
pub(super) fn skipped(json: &HfConfig<'_>) -> Result<usize, ConfigError> {
    Ok(json.size_or("pad_token_id", 1)? + 1)
}

pub(super) fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let base = bert::config(json)?;
    let n_ctx = base.n_ctx.saturating_sub(skipped(json)?);
    // The head has its own activation function.
    Ok(EncoderConfig { n_ctx, head_activation: ActivationFn::Gelu, ..base })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::body(config, "roberta", Layout::AfterRows { skip: skipped(json)? });
    head(&mut table, json)?;
    Ok(table)
}

/// Adds the masked-token head, and marks the head and the pooler as optional.
pub(super) fn head(table: &mut WeightTable, json: &HfConfig<'_>) -> Result<(), ConfigError> {
    table.add("mlm_head.W", "lm_head.dense.weight", Layout::Transposed);
    table.add("mlm_head.b", "lm_head.dense.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "lm_head.layer_norm");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.decoder.weight", tied);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    if !tied {
        table.twins.push(("lm_head.decoder.bias".into(), "lm_head.bias".into()));
    }
    table.optional(&["mlm_head.", "unembed.", "pooler."]);
    Ok(())
}
