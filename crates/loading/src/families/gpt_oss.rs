//! GPT-OSS: Llama with attention sinks, windows in every other layer, and a mixture of experts with clipped gates.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, MlpNames, Names};
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ClippedGate, Layers, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "gpt_oss", architectures: &["GptOssForCausalLM", "GptOssModel"], prefix: "model.", config, weights };

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "rope_theta": 150_000.0, "sliding_window": 128, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096
        }
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let limit = json.number("swiglu_limit", 7.0)?;
    let mut experts = llama_like::experts(json, "num_local_experts", true)?;
    if let Some(experts) = &mut experts {
        experts.clipped = Some(ClippedGate { alpha: json.number("swiglu_alpha", 1.702)?, limit });
    }
    let windows = llama_like::windows_by_type(json, base.n_layers(), |layer| layer % 2 == 0)?;
    base.with_mixture(experts)
        .with_eps(json.number("rms_norm_eps", 1e-5)?)
        .with_attn_sinks(true)
        .with_default_prepend_bos(false)
        .with_windows(windows)
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let attention = json.flag("attention_bias", true)?;
    let biases = Biases { qkv: attention, output: attention, mlp: true };
    let mut table = llama_like::weights_with(c, json, Names { biases, mlp: MlpNames::Other, ..Names::LLAMA })?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("attn.sinks"), from("self_attn.sinks"), Layout::AsIs);
        table.linear(&to("mlp.W_gate"), &from("mlp.router"), true);
        let of = c.experts().map_or(0, |experts| experts.count);
        for index in 0..of {
            for (part, name, start, step) in
                [("gate", "gate_up_proj", 0, 2), ("in", "gate_up_proj", 1, 2), ("out", "down_proj", 0, 1)]
            {
                let layout = Layout::OfCube { index, of, start, step };
                let name = from(&format!("mlp.experts.{name}"));
                table.add(to(&format!("mlp.experts.{index}.W_{part}")), name.clone(), layout);
                table.add(to(&format!("mlp.experts.{index}.b_{part}")), format!("{name}_bias"), layout);
            }
        }
    }
    Ok(table)
}
