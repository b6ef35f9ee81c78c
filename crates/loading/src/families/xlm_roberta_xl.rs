//! XLM-RoBERTa XL: pre-norm RoBERTa with a final norm.

use super::hf_config::HfConfig;
use super::{Family, bert, roberta};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "xlm-roberta-xl",
    architectures: &[
        "XLMRobertaXLForMaskedLM",
        "XLMRobertaXLModel",
        "XLMRobertaXLForSequenceClassification",
        "XLMRobertaXLForTokenClassification",
        "XLMRobertaXLForQuestionAnswering",
    ],
    prefix: "roberta.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let eps = json.number("layer_norm_eps", 1e-5)?;
    let token_types = json.size_or("type_vocab_size", 1)?;
    Ok(EncoderConfig { eps, token_types, pre_norms: true, embed_norm: false, ..roberta::config(json)? })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::body(config, "roberta", Layout::AfterRows { skip: roberta::skipped(json)? });
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("roberta.encoder.layer.{layer}.{part}");
        table.norm(&format!("blocks.{layer}.ln1"), &from("attention.self_attn_layer_norm"));
        table.norm(&format!("blocks.{layer}.ln2"), &from("LayerNorm"));
    }
    table.norm("ln_final", "roberta.encoder.LayerNorm");
    roberta::head(&mut table, json)?;
    Ok(table)
}
