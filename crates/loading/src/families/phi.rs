//! Phi 1, 1.5 and 2: parallel attention and MLP after one norm, with partial rotary embedding.

use super::hf_config::HfConfig;
use super::{Family, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind, QkNorm, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "phi", architectures: &["PhiForCausalLM", "PhiModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let heads = QkNorm { kind: NormKind::LayerNorm, ..QkNorm::HEADS };
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    let turned = rope::share(json, 0.5)?;
    let kv_heads = json.maybe_size("num_key_value_heads")?.unwrap_or(base.n_heads());
    let rotary = rope::read(json, (turned * base.d_head() as f64) as usize, "rope_theta")?;
    Ok(base
        .with_kv_heads(kv_heads)
        .with_d_mlp(json.size("intermediate_size")?)
        .with_positional(rotary)
        .with_eps(json.number("layer_norm_eps", 1e-5)?)
        .with_activation(json.text("hidden_act", "gelu_new")?.parse::<ActivationFn>()?)
        .with_residual(ResidualScheme::Parallel)
        .with_qk_norm(json.flag("qk_layernorm", false)?.then_some(heads))
        .with_default_prepend_bos(false))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("input_layernorm"));
        table.norm(&to("ln2"), &from("input_layernorm"));
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "dense")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), true);
        }
        if config.qk_norm().is_some() {
            table.norm(&to("attn.q_norm"), &from("self_attn.q_layernorm"));
            table.norm(&to("attn.k_norm"), &from("self_attn.k_layernorm"));
        }
        table.linear(&to("mlp.W_in"), &from("mlp.fc1"), true);
        table.linear(&to("mlp.W_out"), &from("mlp.fc2"), true);
    }
    table.norm("ln_final", "model.final_layernorm");
    let tied = json.flag("tie_word_embeddings", false)?;
    table.unembedding("lm_head.weight", tied);
    table.add("unembed.b_U", "lm_head.bias", Layout::AsIs);
    Ok(table)
}
