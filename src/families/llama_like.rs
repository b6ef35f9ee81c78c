//! What Llama, Mistral and Qwen 2 have in common: the choices and the tensor names.

use super::hf_config::HfConfig;
use super::rope;
use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig};
use crate::error::ConfigError;
use crate::loading::{Layout, WeightTable};

/// RMS norm, rotary positions, a gated MLP, shared key/value heads.
pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = match json.maybe_size("head_dim")? {
        Some(d_head) => d_head,
        None => json.share("num_attention_heads", d_model, n_heads)?,
    };
    let base = TransformerConfig::new(
        json.layers("num_hidden_layers")?,
        d_model,
        n_heads,
        json.size("vocab_size")?,
        json.size("max_position_embeddings")?,
    );
    Ok(TransformerConfig {
        n_kv_heads: json.maybe_size("num_key_value_heads")?.unwrap_or(n_heads),
        d_head,
        d_mlp: json.size("intermediate_size")?,
        norm: NormKind::Rms,
        eps: json.number("rms_norm_eps", 1e-6)?,
        activation: ActivationFn::from_name(json.text("hidden_act", "silu")?)?,
        gated_mlp: true,
        attn_scale: (d_head as f64).sqrt(),
        positional: Positional::Rotary(rope::read(json, d_head, "rope_theta")?),
        ..base
    })
}

/// Which projections have a bias.
pub(super) struct Biases {
    pub(super) qkv: bool,
    pub(super) output: bool,
    pub(super) mlp: bool,
}

/// The tensor names, biases as the configuration's `attention_bias` and `mlp_bias` tell.
pub(super) fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let attention = json.flag("attention_bias", false)?;
    let biases = Biases { qkv: attention, output: attention, mlp: json.flag("mlp_bias", false)? };
    weights_with(config, json, biases)
}

/// The tensor names, with these biases.
pub(super) fn weights_with(
    config: &TransformerConfig,
    json: &HfConfig<'_>,
    biases: Biases,
) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("input_layernorm.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("post_attention_layernorm.weight"), Layout::AsIs);
        for (letter, name, biased) in [
            ("Q", "q_proj", biases.qkv),
            ("K", "k_proj", biases.qkv),
            ("V", "v_proj", biases.qkv),
            ("O", "o_proj", biases.output),
        ] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), biased);
        }
        for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
            table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), biases.mlp);
        }
    }
    table.add("ln_final.w", "model.norm.weight", Layout::AsIs);
    let tied = json.flag("tie_word_embeddings", false)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
