//! Gemma 4 (text): plain norm weights, normalized values, and a scalar per block that multiplies the residual stream.
//! Global layers have wider heads and may compute values from the key projection.
//!
//! The small models have per-layer inputs, and their last layers reuse the keys and values of earlier ones; one model
//! has experts beside the MLP.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, gemma, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ActivationFn, AttentionConfig, Experts, Layers, MixerConfig, MlpConfig, NormKind, PerLayerInputs, QkNorm, Rotary,
    Settings, SharedExpert, TransformerConfig, Window,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "gemma4_text",
    architectures: &["Gemma4ForCausalLM", "Gemma4TextModel"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&DEFAULTS)),
    weights: |config, json| weights(config, &json.defaulting(&DEFAULTS)),
};

/// The unified model, which reads images and audio without separate towers.
pub(super) static UNIFIED: Family = Family {
    name: "gemma4_unified_text",
    architectures: &["Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextModel"],
    prefix: "model.",
    config: |json| config(&json.defaulting(&UNIFIED_DEFAULTS)),
    weights: |config, json| weights(config, &json.defaulting(&UNIFIED_DEFAULTS)),
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "sliding_window": 512, "global_head_dim": 512, "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    })
});

/// Hugging Face's defaults for the unified model, which has no per-layer inputs.
static UNIFIED_DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    let mut defaults = DEFAULTS.clone();
    for (field, value) in
        [("max_position_embeddings", 262_144), ("sliding_window", 1024), ("hidden_size_per_layer_input", 0)]
    {
        defaults[field] = json!(value);
    }
    defaults
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    match json.get("use_bidirectional_attention") {
        // Attention between text positions is causal; only image positions attend to each other in both directions.
        None | Some(Value::Bool(false)) => {}
        Some(Value::String(kind)) if kind == "vision" => {}
        Some(_) => return Err(json.unsupported("use_bidirectional_attention")),
    }
    let n_layers = json.layers("num_hidden_layers")?;
    let (d_model, n_heads, d_vocab) =
        (json.size("hidden_size")?, json.size("num_attention_heads")?, json.size("vocab_size")?);
    let windows = windows(json, n_layers)?;
    let [near, far] = heads(json)?;
    let mixers = mixers(json, &windows, [near, far])?;
    let shared_keys = shared_keys(json, &windows)?;
    let rotaries = (0..n_layers).map(|layer| {
        let [_, d_head] = mixers[layer];
        let kind = if windows[layer].is_some() { "sliding_attention" } else { "full_attention" };
        rope::of_type(json, kind, d_head)
    });
    let rotaries: Vec<Rotary> = rotaries.collect::<Result<_, _>>()?;
    let width = json.number("hidden_size_per_layer_input", 0.0)? as usize;
    if width > 0 && json.size("vocab_size_per_layer_input")? != d_vocab {
        return Err(json.unsupported("vocab_size_per_layer_input"));
    }
    let d_mlp = json.size("intermediate_size")?;
    let wide = json.flag("use_double_wide_mlp", false)? && shared_keys.iter().any(Option::is_some);
    let experts = experts(json, d_mlp)?;
    if wide && experts.is_some() {
        return Err(json.unsupported("use_double_wide_mlp"));
    }
    let attention = mixers.into_iter().map(|[n_kv_heads, d_head]| AttentionConfig::new(n_kv_heads, d_head));
    let mlp = |from: &Option<usize>| match (experts, from) {
        (Some((experts, d_mlp)), _) => MlpConfig::Experts { experts, d_mlp, gated: true },
        (None, Some(_)) if wide => MlpConfig::Gated { d_mlp: d_mlp.saturating_mul(2) },
        (None, _) => MlpConfig::Gated { d_mlp },
    };
    let mlps: Vec<_> = (0..n_layers).map(|layer| mlp(shared_keys.get(layer).unwrap_or(&None))).collect();
    TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, rope::context(json)?)
        .with_positional(rotaries[0].clone())
        .with_norm(NormKind::Rms)
        .with_eps(json.number("rms_norm_eps", 1e-6)?)
        .with_embed_scale((d_model as f64).sqrt())
        .with_post_norms(true)
        .with_qk_norm(QkNorm { values: true, ..QkNorm::HEADS })
        .with_activation(json.text("hidden_activation", "gelu_pytorch_tanh")?.parse::<ActivationFn>()?)
        .with_attn_scale(1.0)
        .with_output_logits_soft_cap(json.maybe_number("final_logit_softcapping")?)
        .with_per_layer_inputs((width > 0).then_some(PerLayerInputs { width }))
        .with_layer_scalars(true)
        .with_mixers(attention.map(MixerConfig::Attention))?
        .with_mlps(mlps)?
        .with_shared_keys(shared_keys)?
        .with_layer_rotary(rotaries.into_iter().map(Some))?
        .with_windows(windows)
}

/// Window of each layer. By default, five of six layers have one; the last layer never does.
fn windows(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    let mut windows = llama_like::windows_by_type(json, n_layers, |layer| (layer + 1) % 6 != 0)?;
    windows.resize(n_layers, None);
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    Ok(windows)
}

/// Key/value heads and head width of windowed layers, and of global layers.
fn heads(json: &HfConfig<'_>) -> Result<[[usize; 2]; 2], ConfigError> {
    let n_kv_heads = json.size("num_key_value_heads")?;
    let near = [n_kv_heads, json.size("head_dim")?];
    // Global layers have fewer key/value heads only if their values equal their keys.
    let own = if json.flag("attention_k_eq_v", false)? { json.maybe_size("num_global_key_value_heads")? } else { None };
    let far = [own.unwrap_or(n_kv_heads), json.size("global_head_dim")?];
    Ok([near, far])
}

/// Key/value heads and head width of each layer. Newer files list the layers that differ.
fn mixers(
    json: &HfConfig<'_>,
    windows: &[Option<Window>],
    [near, far]: [[usize; 2]; 2],
) -> Result<Vec<[usize; 2]>, ConfigError> {
    let Some(listed) = json.object("per_layer_config")? else {
        return Ok(windows.iter().map(|window| if window.is_some() { near } else { far }).collect());
    };
    let [n_kv_heads, d_head] = near;
    let of_layer = |layer: usize| {
        let Some(own) = listed.object(&layer.to_string())? else { return Ok(near) };
        let n_kv_heads = own.size_or("num_key_value_heads", n_kv_heads)?;
        Ok([n_kv_heads, own.size_or("head_dim", d_head)?])
    };
    let known = ["head_dim", "num_key_value_heads"];
    let of_layers = json.get("per_layer_config").and_then(Value::as_object).into_iter().flatten();
    for (layer, own) in of_layers {
        let there = layer.parse::<usize>().is_ok_and(|layer| layer < windows.len());
        let fields = own.as_object().into_iter().flatten();
        if !there || fields.into_iter().any(|(field, _)| !known.contains(&field.as_str())) {
            return Err(json.unsupported("per_layer_config"));
        }
    }
    (0..windows.len()).map(of_layer).collect()
}

/// For each layer that reuses keys and values, the last earlier layer of the same type that computes its own.
fn shared_keys(json: &HfConfig<'_>, windows: &[Option<Window>]) -> Result<Vec<Option<usize>>, ConfigError> {
    let count = json.number("num_kv_shared_layers", 0.0)? as usize;
    if count == 0 {
        return Ok(Vec::new());
    }
    let first = windows.len().saturating_sub(count);
    let source = |layer: usize| {
        let like = |from: &usize| windows[*from].is_some() == windows[layer].is_some();
        let reason = || format!("layer {layer} has no earlier layer of its type to share keys and values with");
        let field = "num_kv_shared_layers";
        (0..first).rev().find(like).ok_or_else(|| ConfigError::Contradiction { field, reason: reason() })
    };
    (0..windows.len()).map(|layer| if layer < first { Ok(None) } else { source(layer).map(Some) }).collect()
}

/// The experts beside the MLP, and the width of each.
fn experts(json: &HfConfig<'_>, d_mlp: usize) -> Result<Option<(Experts, usize)>, ConfigError> {
    if !json.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let experts = Experts {
        shared: Some(SharedExpert { d_mlp, gated: false }),
        own_scales: true,
        own_norms: true,
        ..Experts::new(json.size("num_experts")?, json.size("top_k_experts")?)
    };
    Ok(Some((experts, json.size("moe_intermediate_size")?)))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mlp = if c.experts().is_some() { MlpNames::Other } else { MlpNames::Gated };
    let names = Names { norms: gemma::AROUND, mlp, tied: true, ..Names::LLAMA };
    let mut names = names.with_biases_of(json)?;
    names.biases.mlp = false;
    let biased = names.biases.qkv;
    let mut table = llama_like::weights_with(c, json, names)?;
    let keys_are_values = json.flag("attention_k_eq_v", false)?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        if c.reads_keys_of(layer).is_some() {
            // The layer reuses the keys and values of an earlier layer, but some files contain these tensors
            // nevertheless.
            for part in ["attn.W_K", "attn.b_K", "attn.W_V", "attn.b_V", "attn.k_norm.w"] {
                table.remove(&to(part));
            }
        } else if keys_are_values && c.window(layer).is_none() {
            table.linear(&to("attn.W_V"), &from("self_attn.k_proj"), biased);
        }
        table.add(to("scalar"), from("layer_scalar"), Layout::AsIs);
        if c.per_layer_inputs().is_some() {
            table.linear(&to("per_layer.W_gate"), &from("per_layer_input_gate"), false);
            table.linear(&to("per_layer.W_out"), &from("per_layer_projection"), false);
            table.add(to("per_layer_post.w"), from("post_per_layer_input_norm.weight"), Layout::AsIs);
        }
        if let Some(experts) = c.experts_of(layer) {
            mixture(&mut table, c, layer, experts);
        }
    }
    if c.per_layer_inputs().is_some() {
        table.add("per_layer_embed.W_E", "model.embed_tokens_per_layer.weight", Layout::AsIs);
        table.linear("per_layer_embed.W_proj", "model.per_layer_model_projection", false);
        table.add("per_layer_embed.norm.w", "model.per_layer_projection_norm.weight", Layout::AsIs);
    }
    Ok(table)
}

fn mixture(table: &mut WeightTable, c: &TransformerConfig, layer: usize, experts: Experts) {
    let from = |part: &str| format!("model.layers.{layer}.{part}");
    let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
    for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
        table.linear(&to(&format!("shared.W_{part}")), &from(&format!("mlp.{name}")), false);
    }
    table.linear(&to("W_gate"), &from("router.proj"), false);
    table.add(to("router_ln.w"), from("router.scale"), Layout::AsIs);
    table.scale(&to("router_ln.w"), (c.d_model() as f64).sqrt().recip());
    table.add(to("expert_scales"), from("router.per_expert_scale"), Layout::AsIs);
    for (part, name) in [
        ("experts_ln", "pre_feedforward_layernorm_2"),
        ("shared_ln_post", "post_feedforward_layernorm_1"),
        ("experts_ln_post", "post_feedforward_layernorm_2"),
    ] {
        table.add(to(&format!("{part}.w")), from(&format!("{name}.weight")), Layout::AsIs);
    }
    let of = experts.count;
    for index in 0..of {
        for (part, start) in [("gate", 0), ("in", c.d_mlp())] {
            let layout = Layout::RowsOfStack { index, of, start, rows: 2 * c.d_mlp() };
            table.add(to(&format!("experts.{index}.W_{part}")), from("experts.gate_up_proj"), layout);
        }
        table.add(to(&format!("experts.{index}.W_out")), from("experts.down_proj"), Layout::OfStack { index, of });
    }
}
