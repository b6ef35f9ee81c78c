//! GPT-Neo and TinyStories: unscaled attention scores, and windows in every other layer.

use serde_json::Value;

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, TransformerConfig, Window};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "gpt_neo",
    architectures: &["GPTNeoForCausalLM", "GPTNeoModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["num_layers", "hidden_size", "num_heads"], json.size("max_position_embeddings")?)?;
    let d_mlp = json.maybe_size("intermediate_size")?.unwrap_or(base.d_mlp());
    let windows = windows(json, base.n_layers())?;
    base.with_d_mlp(d_mlp)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation_function", "gelu_new")?.parse::<ActivationFn>()?)
        .with_attn_scale(1.0)
        .with_windows(windows)
}

/// Windows of the layers. `attention_layers` lists each layer's kind; `attention_types` repeats lists of kinds:
/// `[[["global", "local"], 12]]`.
fn windows(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    let mut kinds: Vec<&Value> = Vec::new();
    let listed = if json.get("attention_layers").is_some() { "attention_layers" } else { "attention_types" };
    match (json.list("attention_layers")?, json.list("attention_types")?) {
        (Some(layers), _) => kinds.extend(layers),
        (None, Some(types)) => {
            for repeated in types {
                let parts = repeated.as_array().map(Vec::as_slice);
                let Some([names, count]) = parts else { return Err(json.unsupported("attention_types")) };
                let (Some(names), Some(count)) = (names.as_array(), count.as_u64()) else {
                    return Err(json.unsupported("attention_types"));
                };
                let repeats = (count as usize).min(n_layers);
                kinds.extend((0..repeats).flat_map(|_| names));
            }
        }
        (None, None) if json.has("attention_types") => return Err(json.unsupported("attention_types")),
        (None, None) => {
            // Every other layer, as in Hugging Face.
            let window = Window::Sliding(json.size_or("window_size", 256)?);
            return Ok((0..n_layers).map(|layer| (layer % 2 == 1).then_some(window)).collect());
        }
    }
    let window = Window::Sliding(json.size_or("window_size", 256)?);
    let of_kind = |kind: &&Value| match kind.as_str() {
        Some("local") => Ok(Some(window)),
        Some("global") => Ok(None),
        _ => Err(json.unsupported(listed)),
    };
    let windows: Vec<Option<Window>> = kinds.iter().map(of_kind).collect::<Result<_, _>>()?;
    Ok(if windows.iter().any(Option::is_some) { windows } else { Vec::new() })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[".attn.attention.bias", ".attn.attention.masked_bias"]);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    table.add("pos_embed.W_pos", "transformer.wpe.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("ln_1"));
        table.norm(&to("ln2"), &from("ln_2"));
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            let biased = letter == "O";
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attn.attention.{name}")), biased);
        }
        table.linear(&to("mlp.W_in"), &from("mlp.c_fc"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.c_proj"), true);
    }
    table.norm("ln_final", "transformer.ln_f");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
