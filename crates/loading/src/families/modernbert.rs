//! ModernBERT: pre-norm, rotary embedding, gated MLPs, and windows in two of three layers.

use super::Family;
use super::hf_config::HfConfig;
use super::rope::{self, by_window};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, Rotary, Window};
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderConfig> = Family {
    name: "modernbert",
    architectures: &[
        "ModernBertForMaskedLM",
        "ModernBertModel",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
        "ModernBertForQuestionAnswering",
    ],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = json.share("num_attention_heads", d_model, n_heads)?;
    let n_layers = json.layers("num_hidden_layers")?;
    let n_ctx = json.size_or("max_position_embeddings", 8192)?;
    let windows = windows(json, n_layers)?;
    let newer = json.object("rope_parameters")?.is_some();
    let mut far = rope::read(json, d_head, "global_rope_theta")?;
    let mut near = rope::of_windows(json, &far)?.unwrap_or_else(|| far.clone());
    if !newer {
        far.base = json.number("global_rope_theta", 160_000.0)?;
        near = Rotary { base: json.number("local_rope_theta", 10_000.0)?, ..far.clone() };
    }
    Ok(EncoderConfig {
        d_mlp: json.size("intermediate_size")?,
        eps: json.number("norm_eps", 1e-5)?,
        activation: json.text("hidden_activation", "gelu")?.parse::<ActivationFn>()?,
        head_activation: json.text("classifier_activation", "gelu")?.parse::<ActivationFn>()?,
        token_types: 0,
        pre_norms: true,
        first_norm: false,
        layer_rotary: by_window(&windows, &near, &far),
        positional: Positional::Rotary(far),
        windows,
        gated_mlp: true,
        ..EncoderConfig::new(n_layers, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

/// Window of each layer.
fn windows(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    let window = Window::Around(json.size_or("local_attention", 128)? / 2);
    if let Some(types) = json.per_layer("layer_types", n_layers)? {
        let of = |kind: &serde_json::Value| match kind.as_str() {
            Some("sliding_attention") => Ok(Some(window)),
            Some("full_attention") => Ok(None),
            _ => Err(json.unsupported("layer_types")),
        };
        return types.iter().map(of).collect();
    }
    let every = json.size_or("global_attn_every_n_layers", 3)?;
    if every == 0 {
        return Err(json.unsupported("global_attn_every_n_layers"));
    }
    Ok((0..n_layers).map(|layer| (layer % every != 0).then_some(window)).collect())
}

fn weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    let norm_bias = json.flag("norm_bias", false)?;
    let norm = |table: &mut WeightTable, to: &str, from: &str| {
        table.norm(to, from);
        if !norm_bias {
            table.remove(&format!("{to}.b"));
        }
    };
    table.add("embed.W_E", "model.embeddings.tok_embeddings.weight", Layout::AsIs);
    norm(&mut table, "embed.ln", "model.embeddings.norm");
    let (attention_bias, mlp_bias) = (json.flag("attention_bias", false)?, json.flag("mlp_bias", false)?);
    let part = |table: &mut WeightTable, to: &str, from: &str, biased: bool, layout: Layout| {
        table.add(to, format!("{from}.weight"), layout);
        if biased {
            table.add(to.replace(".W_", ".b_"), format!("{from}.bias"), layout);
        }
    };
    let width = config.n_heads * config.d_head;
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        if layer > 0 {
            norm(&mut table, &to("ln1"), &from("attn_norm"));
        }
        for (number, letter) in ["Q", "K", "V"].iter().enumerate() {
            let layout = Layout::Rows { start: number * width, of: 3 * width };
            part(&mut table, &to(&format!("attn.W_{letter}")), &from("attn.Wqkv"), attention_bias, layout);
        }
        table.linear(&to("attn.W_O"), &from("attn.Wo"), attention_bias);
        norm(&mut table, &to("ln2"), &from("mlp_norm"));
        for (number, name) in ["gate", "in"].iter().enumerate() {
            let layout = Layout::Rows { start: number * config.d_mlp, of: 2 * config.d_mlp };
            part(&mut table, &to(&format!("mlp.W_{name}")), &from("mlp.Wi"), mlp_bias, layout);
        }
        table.linear(&to("mlp.W_out"), &from("mlp.Wo"), mlp_bias);
    }
    norm(&mut table, "ln_final", "model.final_norm");
    // Classifiers have a different head under the same name.
    let architecture = json.architecture();
    if architecture == "ModernBertForMaskedLM" || !architecture.starts_with("ModernBertFor") {
        table.add("mlm_head.W", "head.dense.weight", Layout::Transposed);
        if json.flag("classifier_bias", false)? {
            table.add("mlm_head.b", "head.dense.bias", Layout::AsIs);
        }
        norm(&mut table, "mlm_head.ln", "head.norm");
        table.unembedding("decoder.weight", json.flag("tie_word_embeddings", true)?);
        if json.flag("decoder_bias", true)? {
            table.add("unembed.b_U", "decoder.bias", Layout::AsIs);
        }
        table.optional(&["mlm_head.", "unembed."]);
    }
    Ok(table)
}
