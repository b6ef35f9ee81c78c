//! OPT: pre-norm, except in the 350M model, which normalizes after the residual additions and projects token embeddings
//! to the residual stream and back.

use super::Family;
use super::fairseq;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormDetails, NormKind, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "opt", architectures: &["OPTForCausalLM", "OPTModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    // Only the 350M model is post-norm.
    let behind = !json.flag("do_layer_norm_before", true)?;
    let affine = json.flag("layer_norm_elementwise_affine", true)?;
    Ok(base
        .with_d_mlp(json.size("ffn_dim")?)
        .with_norm(if affine { NormKind::LayerNorm } else { NormKind::LayerNormPre })
        .with_residual(if behind { ResidualScheme::NormalizedSums } else { ResidualScheme::Sequential })
        .with_no_final_norm(behind || json.flag("_remove_final_layer_norm", false)?)
        .with_activation(json.text("activation_function", "relu")?.parse::<ActivationFn>()?))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    let biased = json.flag("enable_bias", true)?;
    table.add("embed.W_E", "model.decoder.embed_tokens.weight", Layout::AsIs);
    // The first two rows are for padding.
    table.add("pos_embed.W_pos", "model.decoder.embed_positions.weight", Layout::AfterRows { skip: 2 });
    fairseq::layers(&mut table, config, "model.decoder", biased);
    if config.norm().has_weight() && !config.no_final_norm() {
        table.norm("ln_final", "model.decoder.final_layer_norm");
    }
    if let Some(width) = json.maybe_size("word_embed_proj_dim")?.filter(|width| *width != config.d_model()) {
        table.project(width, "model.decoder.project_in.weight", "model.decoder.project_out.weight");
    }
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
