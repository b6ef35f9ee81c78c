//! GPT-2 and models that share its code: distilgpt2, the Stanford CRFM models.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "gpt2", architectures: &["GPT2LMHeadModel", "GPT2Model"], prefix: "transformer.", config, weights };

pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("n_positions")?)?;
    if json.flag("add_cross_attention", false)? {
        return Err(json.unsupported("add_cross_attention"));
    }
    let scaled = json.flag("scale_attn_weights", true)?;
    let d_mlp = json.maybe_size("n_inner")?.unwrap_or(base.d_mlp());
    let attn_scale = if scaled { (base.d_head() as f64).sqrt() } else { 1.0 };
    Ok(base
        .with_d_mlp(d_mlp)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("activation_function", "gelu_new")?.parse::<ActivationFn>()?)
        .with_attn_scale(attn_scale)
        .with_scale_attn_by_inverse_layer_idx(json.flag("scale_attn_by_inverse_layer_idx", false)?))
}

pub(super) fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    // Causal masks, stored as buffers in old checkpoints.
    let mut table = WeightTable::new("", &[".attn.bias", ".attn.masked_bias"]);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    table.add("pos_embed.W_pos", "transformer.wpe.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        for (norm, name) in [("ln1", "ln_1"), ("ln2", "ln_2")] {
            table.add(to(&format!("{norm}.w")), from(&format!("{name}.weight")), Layout::AsIs);
            table.add(to(&format!("{norm}.b")), from(&format!("{name}.bias")), Layout::AsIs);
        }
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Columns { part, of: 3 };
            table.add(to(&format!("attn.W_{letter}")), from("attn.c_attn.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("attn.c_attn.bias"), layout);
        }
        // GPT-2's linear layers store weights as `[in, out]`.
        for (weight, bias, name) in [
            ("attn.W_O", "attn.b_O", "attn.c_proj"),
            ("mlp.W_in", "mlp.b_in", "mlp.c_fc"),
            ("mlp.W_out", "mlp.b_out", "mlp.c_proj"),
        ] {
            table.add(to(weight), from(&format!("{name}.weight")), Layout::AsIs);
            table.add(to(bias), from(&format!("{name}.bias")), Layout::AsIs);
        }
    }
    table.add("ln_final.w", "transformer.ln_f.weight", Layout::AsIs);
    table.add("ln_final.b", "transformer.ln_f.bias", Layout::AsIs);
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
