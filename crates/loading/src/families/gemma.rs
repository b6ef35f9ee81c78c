//! Gemma 1, 2 and 3 (text): scaled embeddings, and norm weights stored as `w - 1`. Version 2 adds norms after attention
//! and the MLP, windows and soft caps; version 3 adds query and key norms and a separate rotary embedding for windowed
//! layers. VaultGemma is Gemma 2 without the norms after attention and the MLP.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{BEFORE, Names};
use super::{Family, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ActivationFn, Layers, Positional, QkNorm, RopeScaling, Rotary, Settings, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static GEMMA: Family = Family {
    name: "gemma",
    architectures: &["GemmaForCausalLM", "GemmaModel"],
    prefix: "model.",
    config: first,
    weights,
};

pub(super) static GEMMA2: Family = Family {
    name: "gemma2",
    architectures: &["Gemma2ForCausalLM", "Gemma2Model"],
    prefix: "model.",
    config: two,
    weights,
};

pub(super) static GEMMA3: Family = Family {
    name: "gemma3_text",
    architectures: &["Gemma3ForCausalLM", "Gemma3TextModel"],
    prefix: "model.",
    config: three,
    weights,
};

pub(super) static VAULT: Family = Family {
    name: "vaultgemma",
    architectures: &["VaultGemmaForCausalLM", "VaultGemmaModel"],
    prefix: "model.",
    config: |json| Ok(two(json)?.with_post_norms(false)),
    weights: |config, json| {
        let norms = &[("ln1", "input_layernorm"), ("ln2", "pre_feedforward_layernorm")];
        weights_with(config, json, norms)
    },
};

fn first(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = one(json)?;
    // The first Gemma uses `hidden_act`, so `hidden_activation` must agree with it.
    let used = json.text("hidden_act", "gelu")?;
    let used = if used == "gelu" { "gelu_pytorch_tanh" } else { used };
    if base.activation() != used.parse::<ActivationFn>()? {
        let reason = format!("it differs from `hidden_act` ({used}), which the first Gemma uses");
        return Err(ConfigError::Contradiction { field: "hidden_activation", reason });
    }
    Ok(base)
}

fn one(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    // In the first files, `hidden_act` is `gelu` by mistake: the models use the tanh approximation.
    let older = Some(json.text("hidden_act", "gelu")?).filter(|function| *function != "gelu");
    let older = older.unwrap_or("gelu_pytorch_tanh");
    let function = match json.is_of(&GEMMA) {
        // The published files have null here.
        true => json.maybe_text("hidden_activation")?.unwrap_or(older),
        false => json.text("hidden_activation", older)?,
    };
    if json.flag("use_bidirectional_attention", false)? {
        return Err(json.unsupported("use_bidirectional_attention"));
    }
    let embed_scale = (base.d_model() as f64).sqrt();
    Ok(base.with_embed_scale(embed_scale).with_activation(function.parse::<ActivationFn>()?))
}

/// Hugging Face's defaults for Gemma 2.
static DEFAULTS_2: LazyLock<Value> = LazyLock::new(
    || json!({"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256}),
);

/// Hugging Face's defaults for Gemma 3.
static DEFAULTS_3: LazyLock<Value> =
    LazyLock::new(|| json!({"sliding_window": 4096, "rope_theta": 1e6, "head_dim": 256}));

fn two(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    around(&json.defaulting(&DEFAULTS_2), |layer| layer % 2 == 0)
}

/// Settings of models with norms before and after sublayers, soft caps, and windows in some layers: the layers that the
/// file lists or, without a list, the layers for which `near` holds.
pub(super) fn around(json: &HfConfig<'_>, near: impl Fn(usize) -> bool) -> Result<TransformerConfig, ConfigError> {
    let base = one(json)?;
    let windows = llama_like::windows_by_type(json, base.n_layers(), near)?;
    base.with_post_norms(true)
        .with_attn_scale(json.number("query_pre_attn_scalar", 256.0)?.sqrt())
        .with_attn_scores_soft_cap(json.maybe_number("attn_logit_softcapping")?)
        .with_output_logits_soft_cap(json.maybe_number("final_logit_softcapping")?)
        .with_windows(windows)
}

fn three(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS_3);
    let pattern = json.size_or("sliding_window_pattern", 6)?.max(1);
    let base = around(json, |layer| (layer + 1) % pattern != 0)?;
    let flat = match rope::parameters(json, "sliding_attention")? {
        Some(parameters) if json.get("rope_local_base_freq").is_none() => parameters.maybe_number("rope_theta")?,
        _ => None,
    };
    let near = flat.unwrap_or(json.number("rope_local_base_freq", 10_000.0)?);
    let layer_rotary = match base.positional() {
        Positional::Rotary(far) => {
            let older = Rotary { base: near, scaling: RopeScaling::None, ..far.clone() };
            let own = if json.get("rope_local_base_freq").is_none() { rope::of_windows(json, far)? } else { None };
            rope::by_window(&llama_like::windows_of(&base), &own.unwrap_or(older), far)
        }
        _ => Vec::new(),
    };
    // Hugging Face's code reads this cap but never applies it.
    base.with_qk_norm(QkNorm::HEADS).with_attn_scores_soft_cap(None).with_layer_rotary(layer_rotary)
}

/// Settings that have no effect in Gemma 3.
pub(super) fn ignored(json: &HfConfig<'_>) -> Result<Vec<String>, ConfigError> {
    let cap = json.maybe_number("attn_logit_softcapping")?;
    let told = |cap| format!("attn_logit_softcapping = {cap}, which Gemma 3 does not apply");
    Ok(cap.map(told).into_iter().collect())
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    weights_with(config, json, if config.post_norms() { AROUND } else { BEFORE })
}

fn weights_with(
    config: &TransformerConfig,
    json: &HfConfig<'_>,
    norms: &'static [(&'static str, &'static str)],
) -> Result<WeightTable, ConfigError> {
    let names = Names { norms, norm_layout: Layout::OneLess, tied: true, ..Names::LLAMA };
    llama_like::weights_with(config, json, names.with_biases_of(json)?)
}

/// Names of norms before and after attention and the MLP.
pub(super) const AROUND: &[(&str, &str)] = &[
    ("ln1", "input_layernorm"),
    ("ln1_post", "post_attention_layernorm"),
    ("ln2", "pre_feedforward_layernorm"),
    ("ln2_post", "post_feedforward_layernorm"),
];
