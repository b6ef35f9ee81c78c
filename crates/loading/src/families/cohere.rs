//! Cohere 1 and 2 (Command R, Aya): parallel attention and MLP after one layer norm without bias, rotary embedding of
//! adjacent pairs, scaled logits. In version 2, most layers have windows, and only those have rotary positions.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    Experts, Layers, NormKind, QkNorm, QkNormWeights, ResidualScheme, RouterFn, Settings, SharedExpert,
    TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static ONE: Family = Family {
    name: "cohere",
    architectures: &["CohereForCausalLM", "CohereModel"],
    prefix: "model.",
    config: |json| {
        let own = QkNorm { kind: NormKind::LayerNorm, weights: QkNormWeights::EachHead, ..QkNorm::HEADS };
        Ok(config(json)?.with_qk_norm(json.flag("use_qk_norm", false)?.then_some(own)))
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

/// Cohere 2 with mixtures of experts.
pub(super) static MIXTURE: Family = Family {
    name: "cohere2_moe",
    architectures: &["Cohere2MoeForCausalLM", "Cohere2MoeModel"],
    prefix: "model.",
    config: mixture,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"max_position_embeddings": 8192, "sliding_window": 4096, "sliding_window_pattern": 4}));
/// Hugging Face's defaults for models with mixtures of experts.
static OF_MIXTURES: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "head_dim": 128, "max_position_embeddings": 8192, "sliding_window": 4096,
        "sliding_window_pattern": 4, "num_experts": 8, "num_experts_per_tok": 2,
        "prefix_dense_sliding_window_pattern": 1
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let eps = json.number("layer_norm_eps", 1e-5)?;
    let json = &json.defaulting(&DEFAULTS);
    let (n_kv_heads, d_mlp) = (json.maybe_size("num_key_value_heads")?, json.size("intermediate_size")?);
    let base = llama_like::of_neighbors(llama_like::config_of(json, 1.0, n_kv_heads, d_mlp, eps)?);
    Ok(base.with_norm(NormKind::LayerNorm).with_residual(ResidualScheme::Parallel))
}

fn two(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = config(json)?;
    let json = &json.defaulting(&DEFAULTS);
    let pattern = json.size_or("sliding_window_pattern", 4)?.max(1);
    let windows = llama_like::windows_by_type(json, base.n_layers(), |layer| (layer + 1) % pattern != 0)?;
    let base = base.with_windows(windows)?;
    let layer_rotary = llama_like::rotating_in_windows(&base);
    base.with_layer_rotary(layer_rotary)
}

fn mixture(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&OF_MIXTURES);
    let base = config(json)?;
    // Layers with a plain MLP come first and have their own window pattern.
    let first = json.size_or("first_k_dense_replace", 0)?;
    let own = json.size("prefix_dense_sliding_window_pattern")?.max(1);
    let pattern = json.size("sliding_window_pattern")?.max(1);
    let slides = |layer: usize| match layer.checked_sub(first) {
        Some(behind) => !(behind + 1).is_multiple_of(pattern),
        None => !(layer + 1).is_multiple_of(own),
    };
    let windows = llama_like::windows_by_type(json, base.n_layers(), slides)?;
    let dense = mixtures::dense_by_type(json, base.n_layers(), |layer| layer < first)?;
    let base = base.with_windows(windows)?;
    let mut layer_rotary = llama_like::rotating_in_windows(&base);
    // The layers with a plain MLP have rotary positions, too, if none of them has a window.
    for layer in (0..base.n_layers()).filter(|layer| own == 1 && dense[*layer]) {
        layer_rotary[layer] = base.rotary(layer).cloned();
    }
    let rms = json.maybe_number("rms_norm_eps")?;
    let norm = if rms.is_some() { NormKind::Rms } else { NormKind::LayerNorm };
    let eps = rms.unwrap_or(base.eps());
    let base = base.with_norm(norm).with_eps(eps).with_layer_rotary(layer_rotary)?;
    let router = match json.text("expert_selection_fn", "softmax")? {
        "softmax" => RouterFn::Softmax,
        "sigmoid" => RouterFn::Sigmoid,
        _ => return Err(json.unsupported("expert_selection_fn")),
    };
    let d_mlp = json.size("intermediate_size")?;
    let shared = json.size_or("num_shared_experts", 0)?.saturating_mul(d_mlp);
    if !matches!(json.text("shared_expert_combination_strategy", "average")?, "average" | "sum") {
        return Err(json.unsupported("shared_expert_combination_strategy"));
    }
    let experts = Experts {
        router,
        // The softmax runs over the chosen experts only.
        renormalize: router == RouterFn::Softmax || json.flag("norm_topk_prob", true)?,
        shared: (shared > 0).then_some(SharedExpert { d_mlp: shared, gated: false }),
        ..Experts::new(json.size("num_experts")?, json.size("num_experts_per_tok")?)
    };
    let plain = json.maybe_size("prefix_dense_intermediate_size")?.unwrap_or(d_mlp);
    Ok(mixtures::with_experts(base.with_d_mlp(plain), (experts, d_mlp), |layer| dense[layer]))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    // Attention and MLP share one norm.
    let norms = &[("ln1", "input_layernorm"), ("ln2", "input_layernorm")];
    let mixture = json.is_of(&MIXTURE);
    let mlp = if mixture { mixtures::EXPERTS } else { Names::LLAMA.mlp };
    let mut names = Names { norms, mlp, tied: true, ..Names::LLAMA }.with_biases_of(json)?;
    names.biases.mlp = false;
    let mut table = llama_like::weights_with(c, json, names)?;
    if c.qk_norm().is_some() {
        for layer in 0..c.n_layers() {
            for (letter, heads) in [("q", c.n_heads()), ("k", c.n_kv_heads())] {
                let name = format!("model.layers.{layer}.self_attn.{letter}_norm.weight");
                table.add(format!("blocks.{layer}.attn.{letter}_norm.w"), name, Layout::HeadsOut { heads });
            }
        }
    }
    mixtures::add_shared(&mut table, c, "mlp.shared_experts", None);
    if c.experts().is_some_and(|own| own.shared.is_some())
        && json.text("shared_expert_combination_strategy", "average")? == "average"
    {
        for layer in 0..c.n_layers() {
            let Some(experts) = c.experts_of(layer) else { continue };
            table.scale(&format!("blocks.{layer}.mlp.shared.W_out"), 0.5);
            for expert in 0..experts.count {
                table.scale(&format!("blocks.{layer}.mlp.experts.{expert}.W_out"), 0.5);
            }
        }
    }
    // Scale the final norm instead of the unembedding, which may be tied.
    table.scale("ln_final.w", json.number("logit_scale", 0.0625)?);
    Ok(table)
}
