//! EXAONE 3: Llama's architecture with GPT-2's names. EXAONE 4: norms after attention and the MLP, and query and key
//! norms; in models with windows, only windowed layers have rotary positions.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Layers, NormKind, QkNorm, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static THREE: Family = Family {
    name: "exaone",
    architectures: &["ExaoneForCausalLM", "ExaoneModel"],
    prefix: "transformer.",
    config: three,
    weights: three_weights,
};

pub(super) static FOUR: Family = Family {
    name: "exaone4",
    architectures: &["Exaone4ForCausalLM", "Exaone4Model"],
    prefix: "model.",
    config: four,
    weights: |config, json| {
        let norms = &[("ln1_post", "post_attention_layernorm"), ("ln2_post", "post_feedforward_layernorm")];
        llama_like::weights_with(config, json, Names { norms, ..Names::LLAMA })
    },
};

fn three(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Transformers 5 uses Llama's names.
    let older_or = |older: &'static str, newer: &'static str| if json.get(older).is_some() { older } else { newer };
    let layers = older_or("num_layers", "num_hidden_layers");
    let base = json.sizes([layers, "hidden_size", "num_attention_heads"], rope::context(json)?)?;
    let d_head = json.maybe_size("head_dim")?.unwrap_or(base.d_head());
    let kv_heads = json.maybe_size("num_key_value_heads")?.unwrap_or(base.n_heads());
    let d_mlp = json.maybe_size("intermediate_size")?.unwrap_or(base.d_mlp());
    Ok(base
        .with_kv_heads(kv_heads)
        .with_d_head(d_head)
        .with_d_mlp(d_mlp)
        .with_gated_mlp(true)
        .with_positional(rope::read(json, d_head, "rope_theta")?)
        .with_norm(NormKind::Rms)
        .with_eps(json.number(older_or("layer_norm_epsilon", "rms_norm_eps"), 1e-5)?)
        .with_activation(json.text(older_or("activation_function", "hidden_act"), "silu")?.parse::<ActivationFn>()?)
        .with_attn_scale((d_head as f64).sqrt()))
}

fn three_weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary.inv_freq", "rotary_emb.inv_freq"]);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("ln_1.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("ln_2.weight"), Layout::AsIs);
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attn.attention.{name}")), false);
        }
        for (part, name) in [("gate", "c_fc_0"), ("in", "c_fc_1"), ("out", "c_proj")] {
            table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), false);
        }
    }
    table.add("ln_final.w", "transformer.ln_f.weight", Layout::AsIs);
    // By default, EXAONE's own code ties the unembedding and transformers 5 does not.
    table.unembedding_if_there("lm_head.weight");
    if json.has("tie_word_embeddings") {
        table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", true)?);
    }
    Ok(table)
}

/// Hugging Face's defaults for EXAONE 4.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"sliding_window": 4096, "sliding_window_pattern": 4, "rms_norm_eps": 1e-5}));

fn four(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    // The pattern may be a string of letters if `layer_types` is present.
    let pattern = match json.list("layer_types")?.is_some() {
        true => None,
        false => json.maybe_size("sliding_window_pattern")?,
    };
    let pattern = pattern.filter(|pattern| *pattern > 0);
    let windows = llama_like::windows_by_type(json, base.n_layers(), |layer| {
        pattern.is_some_and(|pattern| (layer + 1) % pattern != 0)
    })?;
    // Without windows in the file, all layers have rotary positions.
    let no_windows = windows.is_empty();
    let base = base.with_windows(windows)?;
    let layer_rotary = match no_windows {
        true => Vec::new(),
        false => llama_like::rotating_in_windows(&base),
    };
    base.with_pre_norms(false)
        .with_post_norms(true)
        .with_qk_norm(QkNorm::HEADS)
        .with_default_prepend_bos(false)
        .with_layer_rotary(layer_rotary)
}
