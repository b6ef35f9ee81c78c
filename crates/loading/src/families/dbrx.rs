//! DBRX: layer norms without biases, clipped fused projections, and experts stacked in one tensor per weight.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ActivationFn, Experts, Layers, NormKind, RopeScaling, Rotary, Settings, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "dbrx", architectures: &["DbrxForCausalLM", "DbrxModel"], prefix: "transformer.", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let n_ctx = json.size_or("max_seq_len", 2048)?;
    let base = json.sizes(["n_layers", "d_model", "n_heads"], n_ctx)?;
    let (attention, mlp) = (json.object("attn_config")?, json.object("ffn_config")?);
    let size = |of: &Option<HfConfig<'_>>, field: &str, default: usize| {
        of.as_ref().map_or(Ok(default), |of| of.size_or(field, default))
    };
    let activation = match mlp.as_ref().map_or(Ok(None), |mlp| mlp.object("ffn_act_fn"))? {
        Some(function) => function.text("name", "silu")?,
        None => "silu",
    };
    // The default is 1, and null differs from an omitted field.
    const SHARE: &str = "moe_normalize_expert_weights";
    let renormalize = match &mlp {
        Some(mlp) if mlp.is_null(SHARE) => false,
        Some(mlp) if mlp.number(SHARE, 1.0)? != 1.0 => return Err(mlp.unsupported(SHARE)),
        _ => true,
    };
    let theta = attention.as_ref().map_or(Ok(10_000.0), |own| own.number("rope_theta", 10_000.0))?;
    let clip = attention.as_ref().map_or(Ok(None), |own| own.maybe_number("clip_qkv"))?;
    let experts = Experts::new(size(&mlp, "moe_num_experts", 4)?, size(&mlp, "moe_top_k", 1)?);
    let scaling = RopeScaling::None;
    let rotary = Rotary { dim: base.d_head(), base: theta, adjacent_pairs: false, scaling };
    Ok(base
        .with_kv_heads(size(&attention, "kv_n_heads", 1)?)
        .with_d_mlp(size(&mlp, "ffn_hidden_size", 3584)?)
        .with_gated_mlp(true)
        .with_mixture(Experts { renormalize, ..experts })
        .with_positional(rotary)
        .with_norm(NormKind::LayerNorm)
        .with_eps(1e-5)
        .with_activation(activation.parse::<ActivationFn>()?)
        .with_qkv_clip(clip))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    let count = c.experts().map_or(0, |experts| experts.count);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("transformer.blocks.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.add(to("ln1.w"), from("norm_attn_norm.norm_1.weight"), Layout::AsIs);
        table.add(to("ln2.w"), from("norm_attn_norm.norm_2.weight"), Layout::AsIs);
        llama_like::fuse_attention(&mut table, c, layer, &from("norm_attn_norm.attn.Wqkv"), false);
        table.linear(&to("attn.W_O"), &from("norm_attn_norm.attn.out_proj"), false);
        table.linear(&to("mlp.W_gate"), &from("ffn.router.layer"), false);
        for expert in 0..count {
            let (start, of) = (expert * c.d_mlp(), count * c.d_mlp());
            for (part, name, layout) in [
                ("gate", "w1", Layout::Rows { start, of }),
                ("in", "v1", Layout::Rows { start, of }),
                ("out", "w2", Layout::RowsAsIs { start, of }),
            ] {
                let name = from(&format!("ffn.experts.mlp.{name}"));
                table.add(to(&format!("mlp.experts.{expert}.W_{part}")), name, layout);
            }
        }
    }
    table.add("ln_final.w", "transformer.norm_f.weight", Layout::AsIs);
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}
