//! DeBERTa 2 and 3: BERT with disentangled attention to relative positions.

use super::hf_config::HfConfig;
use super::{Family, bert};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::Positional;
use hooklens_model::encoder::{EncoderConfig, RelativePositions};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "deberta-v2",
    architectures: &[
        "DebertaV2ForMaskedLM",
        "DebertaV2Model",
        "DebertaV2ForSequenceClassification",
        "DebertaV2ForTokenClassification",
        "DebertaV2ForQuestionAnswering",
    ],
    prefix: "deberta.",
    config,
    weights,
};

pub(super) fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let base = bert::config(json)?;
    for field in ["embedding_size", "pooler_hidden_size"] {
        if json.maybe_size(field)?.is_some_and(|width| width != base.d_model) {
            return Err(json.unsupported(field));
        }
    }
    if json.maybe_size("attention_head_size")?.is_some_and(|width| width != base.d_head) {
        return Err(json.unsupported("attention_head_size"));
    }
    // Models with 900 million parameters or more have a convolution beside the first layer.
    if json.maybe_size("conv_kernel_size")?.is_some_and(|size| size > 0) {
        return Err(json.unsupported("conv_kernel_size"));
    }
    let (content_to_position, position_to_content) = kinds(json)?;
    let terms = 1 + usize::from(content_to_position) + usize::from(position_to_content);
    let relative = match json.flag("relative_attention", false)? {
        true if terms > 1 => {
            // Values that are not positive mean that the setting is absent.
            let positive = |field: &str| Ok(json.maybe_number(field)?.filter(|n| *n >= 1.0).map(|n| n as usize));
            let longest = positive("max_relative_positions")?.unwrap_or(base.n_ctx);
            let buckets = positive("position_buckets")?;
            Some(RelativePositions::Disentangled {
                span: buckets.unwrap_or(longest),
                max_distance: buckets.map(|_| longest),
                content_to_position,
                position_to_content,
                shared: json.flag("share_att_key", false)?,
                norm: normalized(json)?,
            })
        }
        true => return Err(json.unsupported("pos_att_type")),
        false => None,
    };
    Ok(EncoderConfig {
        eps: json.number("layer_norm_eps", 1e-7)?,
        token_types: json.size_or("type_vocab_size", 0)?,
        positional: if json.flag("position_biased_input", true)? { Positional::Learned } else { Positional::None },
        attn_scale: ((base.d_head * terms) as f64).sqrt(),
        relative,
        ..base
    })
}

/// Whether attention scores have content-to-position terms, and whether they have position-to-content terms.
fn kinds(json: &HfConfig<'_>) -> Result<(bool, bool), ConfigError> {
    let unsupported = || json.unsupported("pos_att_type");
    let kinds: Vec<String> = match json.get("pos_att_type") {
        None => Vec::new(),
        Some(serde_json::Value::String(text)) => text.to_lowercase().split('|').map(|one| one.trim().into()).collect(),
        Some(serde_json::Value::Array(list)) => {
            let text = |one: &serde_json::Value| one.as_str().map(str::to_string).ok_or_else(unsupported);
            list.iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(unsupported()),
    };
    match kinds.iter().all(|kind| ["c2p", "p2c", ""].contains(&kind.as_str())) {
        true => Ok((kinds.iter().any(|kind| kind == "c2p"), kinds.iter().any(|kind| kind == "p2c"))),
        false => Err(unsupported()),
    }
}

/// Whether the relative position embeddings are normalized.
fn normalized(json: &HfConfig<'_>) -> Result<bool, ConfigError> {
    match json.text("norm_rel_ebd", "none")? {
        "none" => Ok(false),
        "layer_norm" => Ok(true),
        _ => Err(json.unsupported("norm_rel_ebd")),
    }
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = besides_projections(config, json)?;
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("deberta.encoder.layer.{layer}.attention.self.{part}");
        let to = |part: &str| format!("blocks.{layer}.attn.W_{part}");
        for (letter, name) in [("Q", "query_proj"), ("K", "key_proj"), ("V", "value_proj")] {
            table.linear(&to(letter), &from(name), true);
        }
        if let Some(RelativePositions::Disentangled {
            shared: false, content_to_position, position_to_content, ..
        }) = config.relative
        {
            if content_to_position {
                table.linear(&to("rel_K"), &from("pos_key_proj"), true);
            }
            if position_to_content {
                table.linear(&to("rel_Q"), &from("pos_query_proj"), true);
            }
        }
    }
    Ok(table)
}

/// All weights but the attention projections, which are named differently in DeBERTa 1.
pub(super) fn besides_projections(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::body(config, "deberta", Layout::AsIs);
    // The pooler of a classifier has its own activation function.
    table.remove("pooler.W");
    table.remove("pooler.b");
    if let Some(RelativePositions::Disentangled { norm, .. }) = config.relative {
        table.add("relative.W", "deberta.encoder.rel_embeddings.weight", Layout::AsIs);
        if norm {
            table.norm("relative.ln", "deberta.encoder.LayerNorm");
        }
    }
    // The authors' files name the head differently, as does transformers with `legacy: false`.
    let heads = ["cls.predictions", "lm_predictions.lm_head"];
    let legacy = json.flag("legacy", true)?;
    let (head, dense) = if legacy { (heads[0], "transform.") } else { (heads[1], "") };
    table.add("mlm_head.W", format!("{head}.{dense}dense.weight"), Layout::Transposed);
    table.add("mlm_head.b", format!("{head}.{dense}dense.bias"), Layout::AsIs);
    table.norm("mlm_head.ln", &format!("{head}.{dense}LayerNorm"));
    let tied = json.flag("tie_word_embeddings", true)? || !legacy;
    table.unembedding("cls.predictions.decoder.weight", tied);
    table.add("unembed.b_U", format!("{head}.bias"), Layout::AsIs);
    if legacy && !tied {
        table.twins.push(("cls.predictions.decoder.bias".into(), "cls.predictions.bias".into()));
    }
    if tied {
        table.aliases = &[
            ("cls.predictions.transform.dense.weight", "lm_predictions.lm_head.dense.weight"),
            ("cls.predictions.transform.dense.bias", "lm_predictions.lm_head.dense.bias"),
            ("cls.predictions.transform.LayerNorm.weight", "lm_predictions.lm_head.LayerNorm.weight"),
            ("cls.predictions.transform.LayerNorm.bias", "lm_predictions.lm_head.LayerNorm.bias"),
            ("cls.predictions.bias", "lm_predictions.lm_head.bias"),
        ];
    }
    table.optional(&["mlm_head.", "unembed."]);
    Ok(table)
}
