//! Falcon-H1: Llama with attention and Mamba-2 side by side in every layer. Activation multipliers are folded into the
//! weights.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::mamba2::Names as Mamba2;
use super::{Family, llama_like, mamba2};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    AttentionConfig, GatedNorm, Layers, MixerConfig, Settings, StateSpace, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "falcon_h1",
    architectures: &["FalconH1ForCausalLM", "FalconH1Model"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 128_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
        "mamba_expand": 2, "rope_theta": 100_000.0
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    if json.text("hidden_act", "silu")? != "silu" {
        return Err(json.unsupported("hidden_act"));
    }
    let base = llama_like::config(json)?;
    let attention = AttentionConfig::new(base.n_kv_heads(), base.d_head());
    let mixer = MixerConfig::AttentionAndMamba2(attention, space(json, base.d_model())?);
    let mixers = vec![mixer; base.n_layers()];
    let embed_scale = json.number("embedding_multiplier", 1.0)?;
    base.with_embed_scale((embed_scale != 1.0).then_some(embed_scale)).with_mixers(mixers)
}

fn space(json: &HfConfig<'_>, d_model: usize) -> Result<StateSpace, ConfigError> {
    let n_heads = json.size("mamba_n_heads")?;
    let all = match json.maybe_size("mamba_d_ssm")? {
        Some(all) => all,
        None => json.size("mamba_expand")?.saturating_mul(d_model),
    };
    let norm = match (json.flag("mamba_rms_norm", false)?, json.flag("mamba_norm_before_gate", true)?) {
        (false, _) => GatedNorm::None,
        (true, true) => GatedNorm::BeforeGate,
        (true, false) => GatedNorm::AfterGate,
    };
    if n_heads == 0 || !all.is_multiple_of(n_heads) {
        let reason = format!("{all} channels can't be divided evenly among {n_heads} heads (`mamba_n_heads`)");
        return Err(ConfigError::Contradiction { field: "mamba_d_ssm", reason });
    }
    let d_head = all / n_heads;
    mamba2::check_head_width(json, &format!("{all} channels (`mamba_d_ssm`) in {n_heads} heads"), d_head)?;
    let n_groups = json.size("mamba_n_groups")?;
    let sizes = StateSpace::new(n_heads, d_head, json.size("mamba_d_state")?);
    Ok(StateSpace { n_groups, width: json.size("mamba_d_conv")?, norm_groups: n_groups, norm, ..sizes })
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let names = Names {
        norms: &[("ln1", "input_layernorm"), ("ln2", "pre_ff_layernorm")],
        last_norm: false,
        mlp: MlpNames::Other,
        ..Names::LLAMA.with_biases_of(json)?
    };
    let mut table = llama_like::weights_with(c, json, names)?;
    table.add("ln_final.w", "model.final_layernorm.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.feed_forward.{part}");
        for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
            table.linear(&format!("blocks.{layer}.mlp.W_{part}"), &from(name), names.biases.mlp);
        }
    }
    let (maps, conv) = (json.flag("mamba_proj_bias", false)?, json.flag("mamba_conv_bias", true)?);
    let outputs = json.flag("projectors_bias", false)?;
    Mamba2 { folder: "model.layers", part: "mamba", maps, outputs, conv }.add(&mut table, c);
    scale(&mut table, c, json)?;
    Ok(table)
}

/// Folds activation multipliers into the weights before or after the activations.
fn scale(table: &mut WeightTable, c: &TransformerConfig, json: &HfConfig<'_>) -> Result<(), ConfigError> {
    let [attn_in, attn_out, keys, ssm_in, ssm_out] = [
        json.number("attention_in_multiplier", 1.0)?,
        json.number("attention_out_multiplier", 1.0)?,
        json.number("key_multiplier", 1.0)?,
        json.number("ssm_in_multiplier", 1.0)?,
        json.number("ssm_out_multiplier", 1.0)?,
    ];
    let mlp = multipliers(json, "mlp_multipliers", 2)?;
    let parts = multipliers(json, "ssm_multipliers", 5)?;
    for layer in 0..c.n_layers() {
        // An input multiplier does not apply to the bias.
        let mut linear = |module: &str, part: &str, of_weight: f64, of_bias: f64| {
            table.scale(&format!("blocks.{layer}.{module}.W_{part}"), of_weight);
            table.scale(&format!("blocks.{layer}.{module}.b_{part}"), of_bias);
        };
        linear("attn", "Q", attn_in, 1.0);
        linear("attn", "K", attn_in * keys, keys);
        linear("attn", "V", attn_in, 1.0);
        linear("attn", "O", attn_out, attn_out);
        for (part, own) in ["gate", "x", "B", "C", "dt"].into_iter().zip(&parts) {
            linear("ssm", part, ssm_in * own, *own);
        }
        linear("ssm", "O", ssm_out, ssm_out);
        linear("mlp", "gate", mlp[0], mlp[0]);
        linear("mlp", "out", mlp[1], mlp[1]);
    }
    // Scale the final norm instead of the unembedding, which may be tied.
    table.scale("ln_final.w", json.number("lm_head_multiplier", 1.0)?);
    Ok(())
}

/// The `count` numbers in a field, or 1.0 for each if the field is absent.
fn multipliers(json: &HfConfig<'_>, field: &'static str, count: usize) -> Result<Vec<f64>, ConfigError> {
    let Some(list) = json.list(field)? else { return Ok(vec![1.0; count]) };
    let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
    numbers.filter(|numbers| numbers.len() == count).ok_or_else(|| json.unsupported(field))
}
