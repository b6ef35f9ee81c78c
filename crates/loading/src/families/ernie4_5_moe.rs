//! ERNIE 4.5 with mixtures of experts in some layers and rotary embedding of adjacent pairs.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Experts, Layers, Positional, Settings, SharedExpert, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "ernie4_5_moe",
    architectures: &["Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_interval": 1
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let mut base = llama_like::config(json)?;
    if let Positional::Rotary(rotary) = base.positional_mut() {
        rotary.adjacent_pairs = true;
    }
    let d_mlp = json.size("moe_intermediate_size")?;
    let shared = json.size("moe_num_shared_experts")?;
    let experts = Experts {
        choice_bias: true,
        shared: (shared > 0).then_some(SharedExpert { d_mlp: shared.saturating_mul(d_mlp), gated: false }),
        ..Experts::new(json.size("moe_num_experts")?, json.size("moe_k")?)
    };
    let (first, step) = (json.size("moe_layer_start_index")?, json.size("moe_layer_interval")?);
    if step == 0 {
        return Err(json.unsupported("moe_layer_interval"));
    }
    let last = match json.number("moe_layer_end_index", -1.0)? {
        -1.0 => base.n_layers(),
        last if last >= 0.0 => last as usize,
        _ => return Err(json.unsupported("moe_layer_end_index")),
    };
    let dense = |layer: usize| !(first..=last).contains(&layer) || !(layer + 1).is_multiple_of(step);
    Ok(mixtures::with_experts(base, (experts, d_mlp), dense))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("use_bias", false)?;
    let biases = Biases { qkv: biased, output: biased, mlp: biased };
    let names = Names { mlp: mixtures::EXPERTS, biases, tied: true, ..Names::LLAMA };
    let mut table = llama_like::weights_with(config, json, names)?;
    if biased {
        table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    }
    mixtures::add_shared(&mut table, config, "mlp.shared_experts", None);
    for layer in (0..config.n_layers()).filter(|layer| config.experts_of(*layer).is_some()) {
        let from = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let bias = "moe_statics.e_score_correction_bias";
        table.add(to("choice_bias"), from(bias), Layout::OfStack { index: 0, of: 1 });
        if biased && config.experts().is_some_and(|experts| experts.shared.is_some()) {
            for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
                table.add(to(&format!("shared.b_{part}")), from(&format!("shared_experts.{name}.bias")), Layout::AsIs);
            }
        }
    }
    Ok(table)
}
