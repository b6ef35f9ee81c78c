//! ESM-2 and ESM-1b protein models: pre-norm, with rotary or learned positions.

use super::hf_config::HfConfig;
use super::{Family, bert, roberta};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, RopeScaling, Rotary};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "esm",
    architectures: &["EsmForMaskedLM", "EsmModel", "EsmForSequenceClassification", "EsmForTokenClassification"],
    prefix: "esm.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    for field in ["is_decoder", "add_cross_attention", "is_folding_model"] {
        if json.flag(field, false)? {
            return Err(json.unsupported(field));
        }
    }
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = json.share("num_attention_heads", d_model, n_heads)?;
    let rows = json.size_or("max_position_embeddings", 1026)?;
    let (positional, n_ctx) = match json.text("position_embedding_type", "absolute")? {
        "absolute" => (Positional::Learned, rows.saturating_sub(json.size("pad_token_id")? + 1)),
        "rotary" => {
            let base = json.number("rope_theta", 10_000.0)?;
            (Positional::Rotary(Rotary { dim: d_head, base, adjacent_pairs: false, scaling: RopeScaling::None }), rows)
        }
        _ => return Err(json.unsupported("position_embedding_type")),
    };
    let token_dropout = match json.flag("token_dropout", false)? {
        true => Some(u32::try_from(json.size("mask_token_id")?).map_err(|_| json.unsupported("mask_token_id"))?),
        false => None,
    };
    Ok(EncoderConfig {
        d_mlp: json.size("intermediate_size")?,
        eps: json.number("layer_norm_eps", 1e-12)?,
        // Always GELU, regardless of `hidden_act`.
        activation: ActivationFn::Gelu,
        head_activation: ActivationFn::Gelu,
        token_types: 0,
        embed_norm: json.flag("emb_layer_norm_before", false)?,
        token_dropout,
        pre_norms: true,
        positional,
        ..EncoderConfig::new(json.layers("num_hidden_layers")?, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let positions = match config.positional {
        Positional::Learned => Layout::AfterRows { skip: json.size("pad_token_id")? + 1 },
        _ => Layout::AsIs,
    };
    let mut table = bert::body(config, "esm", positions);
    table.derived = &["position_ids", "rotary_embeddings.inv_freq"];
    if config.embed_norm {
        table.norm("embed.ln", "esm.embeddings.layer_norm");
    }
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("esm.encoder.layer.{layer}.{part}");
        table.norm(&format!("blocks.{layer}.ln1"), &from("attention.LayerNorm"));
        table.norm(&format!("blocks.{layer}.ln2"), &from("LayerNorm"));
    }
    table.norm("ln_final", "esm.encoder.emb_layer_norm_after");
    roberta::head(&mut table, json)?;
    Ok(table)
}
