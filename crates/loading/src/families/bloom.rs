//! Bloom: ALiBi positions and an embedding norm.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "bloom",
    architectures: &["BloomForCausalLM", "BloomModel"],
    prefix: "transformer.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Older files use other names for the same settings.
    let size = |name: &str, older: &str| json.size(if json.has(name) { name } else { older });
    let d_model = size("hidden_size", "n_embed")?;
    let n_heads = size("n_head", "num_attention_heads")?;
    json.share("n_head", d_model, n_heads)?;
    let n_layers = if json.has("n_layer") { json.layers("n_layer")? } else { json.layers("num_hidden_layers")? };
    let n_ctx = json.size_or("seq_length", 2048)?;
    let base = TransformerConfig::new(n_layers, d_model, n_heads, json.size("vocab_size")?, n_ctx);
    Ok(base
        .with_positional(Positional::Alibi)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(ActivationFn::GeluNew)
        .with_post_embedding_norm(true)
        .with_residual(if json.flag("apply_residual_connection_post_layernorm", false)? {
            ResidualScheme::NormalizedInputs
        } else {
            ResidualScheme::Sequential
        })
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.add("embed.W_E", "transformer.word_embeddings.weight", Layout::AsIs);
    table.norm("embed.ln", "transformer.word_embeddings_layernorm");
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("input_layernorm"));
        table.norm(&to("ln2"), &from("post_attention_layernorm"));
        for (start, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Grouped { start, take: 1, of: 3, groups: config.n_heads() };
            table.add(to(&format!("attn.W_{letter}")), from("self_attention.query_key_value.weight"), layout);
            table.add(to(&format!("attn.b_{letter}")), from("self_attention.query_key_value.bias"), layout);
        }
        table.linear(&to("attn.W_O"), &from("self_attention.dense"), true);
        table.linear(&to("mlp.W_in"), &from("mlp.dense_h_to_4h"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.dense_4h_to_h"), true);
    }
    table.norm("ln_final", "transformer.ln_f");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
