//! MPNet: BERT without token types, with a relative position bias shared by all layers.

use super::hf_config::HfConfig;
use super::{Family, bert, roberta};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::ActivationFn;
use hooklens_model::encoder::{EncoderConfig, RelativePositions};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "mpnet",
    architectures: &[
        "MPNetForMaskedLM",
        "MPNetModel",
        "MPNetForSequenceClassification",
        "MPNetForTokenClassification",
        "MPNetForQuestionAnswering",
    ],
    prefix: "mpnet.",
    config,
    weights,
};

/// Number of rows in the position table that no token uses, regardless of the padding token.
const SKIPPED: usize = 2;

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let base = bert::config(json)?;
    // MPNet's code always uses this number of buckets, whatever the setting.
    let count = json.size_or("relative_attention_num_buckets", 32)?;
    if count != 32 {
        return Err(json.unsupported("relative_attention_num_buckets"));
    }
    Ok(EncoderConfig {
        n_ctx: base.n_ctx.saturating_sub(SKIPPED),
        relative: Some(RelativePositions::Buckets { count, max_distance: 128, each_layer: false }),
        token_types: 0,
        head_activation: ActivationFn::Gelu,
        ..base
    })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = bert::body(config, "mpnet", Layout::AfterRows { skip: SKIPPED });
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("mpnet.encoder.layer.{layer}.attention.{part}");
        for (letter, name) in [("Q", "q"), ("K", "k"), ("V", "v"), ("O", "o")] {
            table.linear(&format!("blocks.{layer}.attn.W_{letter}"), &from(&format!("attn.{name}")), true);
        }
        table.norm(&format!("blocks.{layer}.ln1"), &from("LayerNorm"));
    }
    table.add("relative.W", "mpnet.encoder.relative_attention_bias.weight", Layout::AsIs);
    roberta::head(&mut table, json)?;
    Ok(table)
}
