//! JAIS and BTLM: GPT-2 with ALiBi or learned positions, a gated MLP, and scales for embeddings, scores and logits.

use super::hf_config::HfConfig;
use super::{Family, gpt2};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Layers, Positional, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "jais",
    architectures: &["JAISLMHeadModel", "JAISModel", "BTLMLMHeadModel"],
    prefix: "transformer.",
    config,
    weights,
};

/// A number, which the first files store under the name `first`, and later files under `later`.
fn number(json: &HfConfig<'_>, first: &str, later: &str) -> Result<f64, ConfigError> {
    json.number(first, json.number(later, 1.0)?)
}

fn embed_scale(json: &HfConfig<'_>) -> Result<f64, ConfigError> {
    number(json, "embeddings_scale", "mup_embeddings_scale")
}

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    if json.flag("add_cross_attention", false)? {
        return Err(json.unsupported("add_cross_attention"));
    }
    if json.get("alibi_scaling").is_some() {
        return Err(json.unsupported("alibi_scaling"));
    }
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size_or("n_positions", 1024)?)?;
    let function = json.text("activation_function", "gelu_new")?;
    let gated = function == "swiglu";
    let by_width = json.flag("scale_qk_dot_by_d", json.flag("mup_scale_qk_dot_by_d", false)?)?;
    let embed = embed_scale(json)?;
    let d_mlp = json.maybe_size("n_inner")?.unwrap_or(base.d_mlp());
    let attn_scale = match (json.flag("scale_attn_weights", true)?, by_width) {
        (false, _) => 1.0,
        (true, true) => base.d_head() as f64,
        (true, false) => base.attn_scale(),
    };
    Ok(base
        .with_d_mlp(d_mlp)
        .with_gated_mlp(gated)
        .with_positional(match json.text("position_embedding_type", "learned")? {
            "learned" => Positional::Learned,
            "alibi" => Positional::Alibi,
            _ => return Err(json.unsupported("position_embedding_type")),
        })
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(if gated { ActivationFn::Silu } else { function.parse::<ActivationFn>()? })
        .with_embed_scale((embed != 1.0).then_some(embed))
        .with_attn_scale(attn_scale)
        .with_scale_attn_by_inverse_layer_idx(json.flag("scale_attn_by_inverse_layer_idx", false)?)
        .with_default_prepend_bos(false))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = gpt2::weights(c, json)?;
    table.derived = &[".attn.bias", ".attn.masked_bias", "relative_pe.slopes"];
    match c.positional() {
        // The sum of both embeddings is scaled.
        Positional::Learned => table.scale("pos_embed.W_pos", embed_scale(json)?),
        _ => table.remove("pos_embed.W_pos"),
    }
    for layer in 0..c.n_layers() {
        if c.is_gated(0) {
            let from = |part: &str| format!("transformer.h.{layer}.mlp.c_fc2.{part}");
            table.add(format!("blocks.{layer}.mlp.W_gate"), from("weight"), Layout::AsIs);
            table.add(format!("blocks.{layer}.mlp.b_gate"), from("bias"), Layout::AsIs);
        }
    }
    let output = json.number("mup_output_alpha", 1.0)? * json.number("mup_width_scale", 1.0)?;
    // Scale the final norm instead of the unembedding, which may be tied.
    for part in ["ln_final.w", "ln_final.b"] {
        table.scale(part, json.number("width_scale", output)?);
    }
    Ok(table)
}
