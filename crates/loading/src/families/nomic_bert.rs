//! NomicBERT: BERT with rotary positions, gated MLPs, and fused projections without biases.

use super::Family;
use super::hf_config::HfConfig;
use super::rope;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, RopeScaling, Rotary};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "nomic_bert",
    architectures: &["NomicBertForMaskedLM", "NomicBertModel", "NomicBertForPreTraining"],
    prefix: "nomic_bert.",
    config,
    weights,
};

/// Whether the file is for the authors' own code, which uses GPT-2's setting names.
fn is_original(json: &HfConfig<'_>) -> bool {
    json.has("n_embd")
}

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    if is_original(json) {
        return original(json);
    }
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = json.share("num_attention_heads", d_model, n_heads)?;
    if json.maybe_size("head_dim")?.is_some_and(|width| width != d_head) {
        return Err(json.unsupported("head_dim"));
    }
    let n_ctx = json.size_or("max_position_embeddings", 2048)?;
    let mut rotary = rope::read(json, d_head, "rope_theta")?;
    if json.object("rope_parameters")?.is_none_or(|given| given.get("rope_theta").is_none()) {
        rotary.base = json.number("rope_theta", 1000.0)?;
    }
    let activation = json.text("hidden_act", "silu")?.parse::<ActivationFn>()?;
    let sizes =
        EncoderConfig::new(json.layers("num_hidden_layers")?, d_model, n_heads, json.size("vocab_size")?, n_ctx);
    Ok(EncoderConfig {
        d_mlp: json.size("intermediate_size")?,
        eps: json.number("layer_norm_eps", 1e-12)?,
        activation,
        head_activation: activation,
        token_types: json.size_or("type_vocab_size", 2)?,
        positional: Positional::Rotary(rotary),
        gated_mlp: true,
        ..sizes
    })
}

/// Reads the configuration of a model saved with Nomic's own code, not with transformers. Settings that only other
/// models of that code use must have their default values.
fn original(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    // Each field with its default in that code.
    for (field, default) in [
        ("prenorm", false),
        ("use_rms_norm", false),
        ("parallel_block", false),
        ("causal", false),
        ("rotary_emb_interleaved", false),
        ("scale_attn_by_inverse_layer_idx", false),
        ("qkv_proj_bias", true),
        ("mlp_fc1_bias", true),
        ("mlp_fc2_bias", true),
    ] {
        if json.flag(field, default)? {
            return Err(json.unsupported(field));
        }
    }
    for field in ["rotary_emb_scale_base", "rotary_scaling_factor", "num_experts", "moe_every_n_layers"] {
        if json.maybe_number(field)?.is_some_and(|number| number != 0.0) {
            return Err(json.unsupported(field));
        }
    }
    if json.text("activation_function", "gelu")? != "swiglu" {
        return Err(json.unsupported("activation_function"));
    }
    let (d_model, n_heads) = (json.size("n_embd")?, json.size("n_head")?);
    let d_head = json.share("n_head", d_model, n_heads)?;
    if json.number("rotary_emb_fraction", 0.0)? != 1.0 {
        return Err(json.unsupported("rotary_emb_fraction"));
    }
    let base = json.number("rotary_emb_base", 10_000.0)?;
    let rotary = Rotary { dim: d_head, base, adjacent_pairs: false, scaling: RopeScaling::None };
    let n_ctx = json.size_or("n_positions", 2048)?;
    Ok(EncoderConfig {
        // Rounded up, as in the authors' gated MLP.
        d_mlp: json.size("n_inner")?.next_multiple_of(256),
        eps: json.number("layer_norm_epsilon", 1e-5)?,
        activation: ActivationFn::Silu,
        head_activation: ActivationFn::Silu,
        token_types: json.size_or("type_vocab_size", 2)?,
        positional: Positional::Rotary(rotary),
        gated_mlp: true,
        ..EncoderConfig::new(json.layers("n_layer")?, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let base = if json.architecture() == "NomicBertForPreTraining" { "bert" } else { "nomic_bert" };
    let mut table = WeightTable::new("", &["position_ids", "inv_freq"]);
    table.aliases = &[("cls.predictions.bias", "cls.predictions.decoder.bias")];
    let embeddings = |part: &str| format!("{base}.embeddings.{part}.weight");
    table.add("embed.W_E", embeddings("word_embeddings"), Layout::AsIs);
    if config.token_types > 0 {
        table.add("embed.W_token_type", embeddings("token_type_embeddings"), Layout::AsIs);
    }
    table.norm("embed.ln", &format!("{base}.emb_ln"));
    let width = config.d_model;
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("{base}.encoder.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        for (number, letter) in ["Q", "K", "V"].iter().enumerate() {
            let layout = Layout::Rows { start: number * width, of: 3 * width };
            table.add(to(&format!("attn.W_{letter}")), from("attn.Wqkv.weight"), layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.out_proj"), false);
        table.norm(&to("ln1"), &from("norm1"));
        for (name, file) in [("in", "fc11"), ("gate", "fc12"), ("out", "fc2")] {
            table.linear(&to(&format!("mlp.W_{name}")), &from(&format!("mlp.{file}")), false);
        }
        table.norm(&to("ln2"), &from("norm2"));
    }
    table.add("pooler.W", format!("{base}.pooler.dense.weight"), Layout::Transposed);
    table.add("pooler.b", format!("{base}.pooler.dense.bias"), Layout::AsIs);
    table.add("mlm_head.W", "cls.predictions.transform.dense.weight", Layout::Transposed);
    table.add("mlm_head.b", "cls.predictions.transform.dense.bias", Layout::AsIs);
    table.norm("mlm_head.ln", "cls.predictions.transform.layer_norm");
    table.unembedding("cls.predictions.decoder.weight", json.flag("tie_word_embeddings", true)?);
    table.add("unembed.b_U", "cls.predictions.bias", Layout::AsIs);
    table.optional(&["mlm_head.", "unembed.", "pooler."]);
    Ok(table)
}
