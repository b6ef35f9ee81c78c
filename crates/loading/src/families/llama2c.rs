//! llama2.c: Llama as in its authors' original code, with rotary embedding of adjacent pairs. Checkpoints store the
//! configuration as `model_args`.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind, RopeScaling, Rotary, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "llama2c", architectures: &["llama2.c"], prefix: "", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layers", "dim", "n_heads"], json.size("max_seq_len")?)?;
    let d_mlp = match json.maybe_size("hidden_dim")? {
        Some(width) => width,
        None => {
            let (multiple, width) = (json.size("multiple_of")?.max(1), base.d_model().saturating_mul(8) / 3);
            width.div_ceil(multiple).saturating_mul(multiple)
        }
    };
    let rotary = Rotary { dim: base.d_head(), base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
    let kv_heads = json.maybe_size("n_kv_heads")?.unwrap_or(base.n_heads());
    Ok(base
        .with_kv_heads(kv_heads)
        .with_d_mlp(d_mlp)
        .with_gated_mlp(true)
        .with_positional(rotary)
        .with_norm(NormKind::Rms)
        .with_eps(json.number("norm_eps", 1e-5)?)
        .with_activation(ActivationFn::Silu))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["freqs_cos", "freqs_sin"]);
    table.add("embed.W_E", "tok_embeddings.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("attention_norm.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("ffn_norm.weight"), Layout::AsIs);
        for (letter, name) in [("Q", "wq"), ("K", "wk"), ("V", "wv"), ("O", "wo")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("attention.{name}")), false);
        }
        for (part, name) in [("gate", "w1"), ("out", "w2"), ("in", "w3")] {
            table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("feed_forward.{name}")), false);
        }
    }
    table.add("ln_final.w", "norm.weight", Layout::AsIs);
    table.unembedding("output.weight", json.flag("tie_word_embeddings", true)?);
    Ok(table)
}
