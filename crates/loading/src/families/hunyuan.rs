//! Hunyuan's dense models: Llama with query and key norms after the rotary embedding.

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Positional, QkNorm, RopeScaling, Rotary, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "hunyuan_v1_dense",
    architectures: &["HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    for (field, common) in [("use_qk_norm", true), ("use_cla", false)] {
        if json.flag(field, common)? != common {
            return Err(json.unsupported(field));
        }
    }
    let base = llama_like::config(json)?;
    let positional = match base.positional() {
        Positional::Rotary(rotary) => Positional::Rotary(stretched(json, rotary.clone())?),
        other => other.clone(),
    };
    let qk_norm = QkNorm { after_rotation: true, ..QkNorm::HEADS };
    Ok(base.with_positional(positional).with_eps(json.number("rms_norm_eps", 1e-5)?).with_qk_norm(qk_norm))
}

/// Applies the scaling that these models call dynamic, which changes the rotary base for texts of any length.
fn stretched(json: &HfConfig<'_>, rotary: Rotary) -> Result<Rotary, ConfigError> {
    let told = match rope::parameters(json, "full_attention")? {
        Some(newer) => Some(newer),
        None => json.object("rope_scaling")?,
    };
    let alpha = told.map_or(Ok(None), |told| told.maybe_number("alpha"))?.filter(|alpha| *alpha != 0.0);
    match (alpha, &rotary.scaling) {
        (Some(alpha), RopeScaling::Dynamic { .. }) => {
            let dim = rotary.dim as f64;
            let base = rotary.base * alpha.powf(dim / (dim - 2.0));
            Ok(Rotary { base, scaling: RopeScaling::None, ..rotary })
        }
        _ => Ok(rotary),
    }
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biases = Names::LLAMA.with_biases_of(json)?.biases;
    let names = Names { biases: llama_like::Biases { mlp: false, ..biases }, ..Names::LLAMA };
    let mut table = llama_like::weights_with(c, json, names)?;
    for layer in 0..c.n_layers() {
        for (ours, theirs) in [("q_norm", "query_layernorm"), ("k_norm", "key_layernorm")] {
            let name = format!("model.layers.{layer}.self_attn.{theirs}.weight");
            table.add(format!("blocks.{layer}.attn.{ours}.w"), name, Layout::AsIs);
        }
    }
    Ok(table)
}
