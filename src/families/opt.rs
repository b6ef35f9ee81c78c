//! OPT: norms before attention and before the MLP; in the 350M model behind the sums, and token vectors that are
//! projected to the stream's width and back.

use super::Family;
use super::hf_config::HfConfig;
use crate::config::{ActivationFn, NormKind, TransformerConfig};
use crate::error::ConfigError;
use crate::weight_files::{Layout, WeightTable};

pub(super) static FAMILY: Family =
    Family { name: "opt", architectures: &["OPTForCausalLM", "OPTModel"], prefix: "model.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(HfConfig::SIZES, json.size("max_position_embeddings")?)?;
    // The 350M model alone normalizes behind.
    let behind = !json.flag("do_layer_norm_before", true)?;
    let affine = json.flag("layer_norm_elementwise_affine", true)?;
    Ok(TransformerConfig {
        norm: if affine { NormKind::LayerNorm } else { NormKind::LayerNormPre },
        residual_norms: behind,
        no_final_norm: behind || json.flag("_remove_final_layer_norm", false)?,
        d_mlp: json.size("ffn_dim")?,
        activation: ActivationFn::from_name(json.text("activation_function", "relu")?)?,
        ..base
    })
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    let biased = json.flag("enable_bias", true)?;
    let norms = config.norm.has_weight();
    table.add("embed.W_E", "model.decoder.embed_tokens.weight", Layout::AsIs);
    // The first two rows are for padding.
    table.add("pos_embed.W_pos", "model.decoder.embed_positions.weight", Layout::AfterRows { skip: 2 });
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("model.decoder.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        if norms {
            table.norm(&to("ln1"), &from("self_attn_layer_norm"));
            table.norm(&to("ln2"), &from("final_layer_norm"));
        }
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), biased);
        }
        table.linear(&to("mlp.W_in"), &from("fc1"), biased);
        table.linear(&to("mlp.W_out"), &from("fc2"), biased);
    }
    if norms && !config.no_final_norm {
        table.norm("ln_final", "model.decoder.final_layer_norm");
    }
    if let Some(width) = json.maybe_size("word_embed_proj_dim")?.filter(|width| *width != config.d_model) {
        table.project(width, "model.decoder.project_in.weight", "model.decoder.project_out.weight");
    }
    let tied = json.flag("tie_word_embeddings", true)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}
