//! Cohere 1 and 2 (Command R, Aya): attention and MLP in parallel behind one layer norm without bias, neighboring
//! coordinates rotated, scaled logits; in 2 windows in most layers, and rotation in those only.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use crate::config::{NormKind, QkNorm, QkNormWeights, TransformerConfig};
use crate::error::ConfigError;
use crate::weight_files::{Layout, WeightTable};

pub(super) static ONE: Family = Family {
    name: "cohere",
    architectures: &["CohereForCausalLM", "CohereModel"],
    prefix: "model.",
    config: |json| {
        let own = QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS };
        Ok(TransformerConfig { qk_norm: json.flag("use_qk_norm", false)?.then_some(own), ..config(json)? })
    },
    weights,
};

pub(super) static TWO: Family = Family {
    name: "cohere2",
    architectures: &["Cohere2ForCausalLM", "Cohere2Model"],
    prefix: "model.",
    config: two,
    weights,
};

/// What Hugging Face takes for fields that a file leaves out.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"max_position_embeddings": 8192, "sliding_window": 4096, "sliding_window_pattern": 4}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let eps = json.number("layer_norm_eps", 1e-5)?;
    let base = llama_like::of_neighbors(llama_like::config(&json.defaulting(&DEFAULTS))?);
    Ok(TransformerConfig { norm: NormKind::LayerNorm, eps, parallel: true, ..base })
}

fn two(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = config(json)?;
    let json = &json.defaulting(&DEFAULTS);
    let pattern = json.maybe_size("sliding_window_pattern")?.unwrap_or(4).max(1);
    let windows = llama_like::windows_by_type(json, base.n_layers, |layer| (layer + 1) % pattern != 0)?;
    let base = TransformerConfig { windows, ..base };
    let layer_rotary = match base.windows.is_empty() {
        true => vec![None; base.n_layers],
        false => llama_like::rotating_in_windows(&base),
    };
    Ok(TransformerConfig { layer_rotary, ..base })
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    // Both read through one norm.
    let norms = &[("ln1", "input_layernorm"), ("ln2", "input_layernorm")];
    let mut names = Names { norms, tied: true, ..Names::LLAMA }.with_biases_of(json)?;
    names.biases.mlp = false;
    let mut table = llama_like::weights_with(c, json, names)?;
    if c.qk_norm.is_some() {
        for layer in 0..c.n_layers {
            for (letter, heads) in [("q", c.n_heads), ("k", c.n_kv_heads)] {
                let name = format!("model.layers.{layer}.self_attn.{letter}_norm.weight");
                table.add(format!("blocks.{layer}.attn.{letter}_norm.w"), name, Layout::HeadsOut { heads });
            }
        }
    }
    // The last norm's weight stands right before the unembedding, which may be tied.
    table.scale("ln_final.w", json.number("logit_scale", 0.0625)?);
    Ok(table)
}
