//! Hunyuan's mixtures of experts: a shared expert, and query and key norms after the rotary embedding.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    Experts, Layers, Positional, QkNorm, RopeScaling, Settings, SharedExpert, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "hunyuan_v1_moe",
    architectures: &["HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Model"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1, "intermediate_size": 11008}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    if json.flag("use_cla", false)? {
        return Err(json.unsupported("use_cla"));
    }
    if !json.flag("use_qk_norm", true)? {
        return Err(json.unsupported("use_qk_norm"));
    }
    let mut base = llama_like::config(json)?;
    let newer = rope::parameters(json, "full_attention")?;
    let told = if newer.is_some() { newer } else { json.object("rope_scaling")? };
    let alpha = told.map_or(Ok(None), |told| told.maybe_number("alpha"))?.unwrap_or(0.0);
    if let (Positional::Rotary(rotary), true) = (base.positional_mut(), alpha != 0.0) {
        if !matches!(rotary.scaling, RopeScaling::Dynamic { .. }) || rotary.dim <= 2 {
            return Err(json.unsupported("rope_scaling"));
        }
        // This base applies to texts up to the trained length.
        rotary.base *= alpha.powf(rotary.dim as f64 / (rotary.dim - 2) as f64);
        rotary.scaling = RopeScaling::None;
    }
    let shared = Some(SharedExpert { d_mlp: base.d_mlp(), gated: false });
    let experts = Experts { shared, ..Experts::new(alike(json, "num_experts")?, alike(json, "moe_topk")?) };
    let qk_norm = Some(QkNorm { after_rotation: true, ..QkNorm::HEADS });
    Ok(base.with_mixture(experts).with_qk_norm(qk_norm).with_default_prepend_bos(false))
}

/// A size that is given once or per layer, and must be the same for all layers.
fn alike(json: &HfConfig<'_>, field: &'static str) -> Result<usize, ConfigError> {
    match json.get(field) {
        Some(Value::Array(each)) => match each.first().and_then(Value::as_u64) {
            Some(size) if each.iter().all(|own| *own == each[0]) => Ok(size as usize),
            _ => Err(json.unsupported(field)),
        },
        _ => json.size(field),
    }
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let parts = ["up_proj", "gate_proj", "down_proj"];
    let mlp = MlpNames::Experts { router: "mlp.gate.wg", folder: "mlp.experts", parts };
    let mut table = llama_like::weights_with(config, json, Names { mlp, ..mixtures::names(json)? })?;
    mixtures::add_shared(&mut table, config, "mlp.shared_mlp", None);
    for layer in 0..config.n_layers() {
        for (norm, name) in [("q_norm", "query_layernorm"), ("k_norm", "key_layernorm")] {
            let name = format!("model.layers.{layer}.self_attn.{name}.weight");
            table.add(format!("blocks.{layer}.attn.{norm}.w"), name, Layout::AsIs);
        }
    }
    Ok(table)
}
