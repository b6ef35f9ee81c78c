//! OPT, with norms before attention and before the MLP.

use super::Family;
use super::hf_config::HfConfig;
use crate::config::{ActivationFn, TransformerConfig};
use crate::error::ConfigError;
use crate::weight_files::{Layout, WeightTable};

pub(super) static FAMILY: Family =
    Family { name: "opt", architectures: &["OPTForCausalLM", "OPTModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // The 350M model alone normalizes behind and projects its embeddings.
    for (field, common) in [
        ("do_layer_norm_before", true),
        ("enable_bias", true),
        ("layer_norm_elementwise_affine", true),
        ("_remove_final_layer_norm", false),
    ] {
        if json.flag(field, common)? != common {
            return Err(json.unsupported(field));
        }
    }
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    if json.maybe_size("word_embed_proj_dim")?.is_some_and(|width| width != base.d_model) {
        return Err(json.unsupported("word_embed_proj_dim"));
    }
    Ok(TransformerConfig {
        d_mlp: json.size("ffn_dim")?,
        activation: ActivationFn::from_name(json.text("activation_function", "relu")?)?,
        ..base
    })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.add("embed.W_E", "model.decoder.embed_tokens.weight", Layout::AsIs);
    // The first two rows are for padding.
    table.add("pos_embed.W_pos", "model.decoder.embed_positions.weight", Layout::AfterRows { skip: 2 });
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("model.decoder.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("self_attn_layer_norm"));
        table.norm(&to("ln2"), &from("final_layer_norm"));
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), true);
        }
        table.linear(&to("mlp.W_in"), &from("fc1"), true);
        table.linear(&to("mlp.W_out"), &from("fc2"), true);
    }
    table.norm("ln_final", "model.decoder.final_layer_norm");
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
