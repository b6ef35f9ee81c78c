//! DeBERTa 1: like DeBERTa 2, but with projections fused per head and a separate embedding for each distance.

use super::hf_config::HfConfig;
use super::{Family, deberta_v2};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::encoder::{EncoderConfig, RelativePositions};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "deberta",
    architectures: &[
        "DebertaForMaskedLM",
        "DebertaModel",
        "DebertaForSequenceClassification",
        "DebertaForTokenClassification",
        "DebertaForQuestionAnswering",
    ],
    prefix: "deberta.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    if json.flag("talking_head", false)? {
        return Err(json.unsupported("talking_head"));
    }
    // Settings of version 2, which version 1's code does not support.
    for field in ["position_buckets", "share_att_key", "norm_rel_ebd"] {
        if json.get(field).is_some() {
            return Err(json.unsupported(field));
        }
    }
    deberta_v2::config(json)
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = deberta_v2::besides_projections(config, json)?;
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("deberta.encoder.layer.{layer}.attention.self.{part}");
        let to = |part: &str| format!("blocks.{layer}.attn.{part}");
        for (start, letter) in ["Q", "K", "V"].iter().enumerate() {
            let layout = Layout::Grouped { start, take: 1, of: 3, groups: config.n_heads };
            table.add(to(&format!("W_{letter}")), from("in_proj.weight"), layout);
        }
        table.add(to("b_Q"), from("q_bias"), Layout::AsIs);
        table.add(to("b_V"), from("v_bias"), Layout::AsIs);
        table.remove(&to("b_K"));
        let Some(RelativePositions::Disentangled { content_to_position, position_to_content, .. }) = config.relative
        else {
            continue;
        };
        if content_to_position {
            table.linear(&to("W_rel_K"), &from("pos_proj"), false);
        }
        if position_to_content {
            table.linear(&to("W_rel_Q"), &from("pos_q_proj"), true);
        }
    }
    Ok(table)
}
