//! JetMoE: each layer has a mixture of attention experts, which share keys and values, and a mixture of MLPs.

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures, rope};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, AttnExperts, Experts, Layers, NormKind, Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "jetmoe",
    architectures: &["JetMoeForCausalLM", "JetMoEForCausalLM", "JetMoeModel", "JetMoEModel"],
    prefix: "model.",
    config,
    weights,
};

/// Epsilon of the norms in blocks; `rms_norm_eps` applies only to the final norm.
const EPS: f64 = 1e-6;

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // The first name is the one in transformers, the second the one in the authors' code.
    let either = |one: &str, other: &str, usual: usize| json.size_or(if json.has(one) { one } else { other }, usual);
    let count = either("num_local_experts", "moe_num_experts", 8)?;
    let per_token = either("num_experts_per_tok", "moe_top_k", 2)?;
    let n_kv_heads = json.size_or("num_key_value_heads", 16)?;
    let d_head = json.size_or("kv_channels", 128)?;
    if !json.flag("glu", true)? {
        return Err(json.unsupported("glu"));
    }
    let base = TransformerConfig::new(
        json.layers("num_hidden_layers")?,
        json.size("hidden_size")?,
        count.saturating_mul(n_kv_heads),
        json.size("vocab_size")?,
        json.size_or("max_position_embeddings", 4096)?,
    );
    let last = json.number("rms_norm_eps", EPS)?;
    Ok(base
        .with_kv_heads(n_kv_heads)
        .with_d_head(d_head)
        .with_d_mlp(either("intermediate_size", "ffn_hidden_size", 5632)?)
        .with_gated_mlp(true)
        .with_mixture(Experts::new(count, per_token))
        .with_positional(rope::read(json, d_head, "rope_theta")?)
        .with_norm(NormKind::Rms)
        .with_eps(EPS)
        .with_final_eps((last != EPS).then_some(last))
        .with_activation(json.text("activation_function", "silu")?.parse::<ActivationFn>()?)
        .with_attn_scale((d_head as f64).sqrt())
        .with_attn_experts(AttnExperts { count, per_token }))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights_with(c, json, Names { mlp: MlpNames::Other, tied: true, ..Names::LLAMA })?;
    let (experts, heads) = (c.experts().map_or(0, |experts| experts.count), c.n_kv_heads());
    let (width, biased) = (heads * c.d_head(), json.flag("bias", true)?);
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        let attention = |part: &str| from(&format!("self_attention.experts.{part}"));
        table.linear(&to("attn.W_router"), &attention("router.layer"), false);
        table.add(to("attn.W_Q"), attention("input_linear.weight"), Layout::ExpertHeadsOut { experts, heads });
        table.add(to("attn.W_O"), attention("output_linear.weight"), Layout::ExpertHeadsIn { experts, heads });
        for (letter, start) in [("K", 0), ("V", width)] {
            let layout = Layout::Rows { start, of: 2 * width };
            table.add(to(&format!("attn.W_{letter}")), from("self_attention.kv_proj.weight"), layout);
        }
        table.linear(&to("mlp.W_gate"), &from("mlp.router.layer"), false);
        mixtures::add_halved(&mut table, &to("mlp.experts"), &from("mlp"), experts, c.d_mlp());
        if biased {
            table.add(to("attn.b_O"), attention("bias"), Layout::AsIs);
            // The weights of a token's experts sum to one, so the mixture's bias can be given to each expert.
            for expert in 0..experts {
                table.add(to(&format!("mlp.experts.{expert}.b_out")), from("mlp.bias"), Layout::AsIs);
            }
        }
    }
    Ok(table)
}
