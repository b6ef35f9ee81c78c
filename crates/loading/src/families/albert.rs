//! ALBERT: BERT whose layers share one block's weights, with embeddings narrower than the residual stream.

use super::hf_config::HfConfig;
use super::{Family, bert};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, MOST_LAYERS};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "albert",
    architectures: &[
        "AlbertForMaskedLM",
        "AlbertModel",
        "AlbertForPreTraining",
        "AlbertForSequenceClassification",
        "AlbertForTokenClassification",
        "AlbertForQuestionAnswering",
    ],
    prefix: "albert.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let base = bert::config(json)?;
    let activation = json.text("hidden_act", "gelu_new")?.parse::<ActivationFn>()?;
    // Each layer in the configuration consists of `inner` blocks, which are shared by all layers of a group.
    let (groups, inner) = groups(json)?;
    let layers = base.n_layers;
    let n_layers = layers.saturating_mul(inner);
    if groups == 0 || inner == 0 || groups > layers || n_layers > MOST_LAYERS {
        return Err(json.unsupported(if groups == 0 || groups > layers {
            "num_hidden_groups"
        } else {
            "inner_group_num"
        }));
    }
    let shared = |layer: usize| (layer as f64 / (layers as f64 / groups as f64)) as usize * inner;
    let shared_blocks = (0..layers).flat_map(|layer| (0..inner).map(move |part| shared(layer) + part)).collect();
    Ok(EncoderConfig {
        n_layers,
        shared_blocks,
        d_embed: Some(json.size_or("embedding_size", 128)?),
        activation,
        head_activation: activation,
        ..base
    })
}

/// Number of layer groups and number of blocks per layer.
fn groups(json: &HfConfig<'_>) -> Result<(usize, usize), ConfigError> {
    let size = |field: &str| json.size_or(field, 1);
    Ok((size("num_hidden_groups")?, size("inner_group_num")?))
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::embedding(config, "albert", Layout::AsIs);
    table.linear("embed.W_proj", "albert.encoder.embedding_hidden_mapping_in", true);
    let (_, inner) = groups(json)?;
    for block in 0..config.n_blocks() {
        let (group, part) = (block / inner, block % inner);
        let from = |name: &str| format!("albert.encoder.albert_layer_groups.{group}.albert_layers.{part}.{name}");
        let to = |part: &str| format!("blocks.{block}.{part}");
        for (letter, name) in [("Q", "query"), ("K", "key"), ("V", "value"), ("O", "dense")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attention.{name}")), true);
        }
        table.norm(&to("ln1"), &from("attention.LayerNorm"));
        table.linear(&to("mlp.W_in"), &from("ffn"), true);
        table.linear(&to("mlp.W_out"), &from("ffn_output"), true);
        table.norm(&to("ln2"), &from("full_layer_layer_norm"));
    }
    table.add("pooler.W", "albert.pooler.weight", Layout::Transposed);
    table.add("pooler.b", "albert.pooler.bias", Layout::AsIs);
    table.add("mlm_head.W", "predictions.dense.weight", Layout::Transposed);
    table.add("mlm_head.b", "predictions.dense.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "predictions.LayerNorm");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("predictions.decoder.weight", tied);
    table.add("unembed.b_U", "predictions.bias", Layout::AsIs);
    if !tied {
        table.twins.push(("predictions.decoder.bias".into(), "predictions.bias".into()));
    }
    table.optional(&["mlm_head.", "unembed.", "pooler."]);
    Ok(table)
}
