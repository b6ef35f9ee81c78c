//! Qwen 3 Next and Qwen 3.5: gated delta nets in most layers and gated attention in the others, a mixture of experts or
//! a plain MLP, and norm weights stored as `w - 1`.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{Biases, MlpNames, Names};
use super::{Family, llama_like, mixtures, qwen3_moe};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    AttentionConfig, Experts, GatedDelta, Layers, MixerConfig, QkNorm, Settings, SharedExpert, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static NEXT: Family = Family {
    name: "qwen3_next",
    architectures: &["Qwen3NextForCausalLM", "Qwen3NextModel"],
    prefix: "model.",
    config: |json| {
        let json = &json.defaulting(&NEXT_DEFAULTS);
        mixture(json, hybrid(json)?, json.flag("norm_topk_prob", true)?)
    },
    weights: |config, json| {
        let json = &json.defaulting(&NEXT_DEFAULTS);
        let mut table = weights(config, json, mixtures::EXPERTS)?;
        let net = sizes(json)?;
        for layer in (0..config.n_layers()).filter(|layer| !config.attends(*layer)) {
            grouped(&mut table, layer, net);
        }
        experts(&mut table, config);
        Ok(table)
    },
};

pub(super) static THREE_FIVE: Family = Family {
    name: "qwen3_5_text",
    architectures: &["Qwen3_5ForCausalLM", "Qwen3_5TextModel"],
    prefix: "model.",
    config: |json| hybrid(&json.defaulting(&DENSE_DEFAULTS)),
    weights: |config, json| {
        let json = &json.defaulting(&DENSE_DEFAULTS);
        let mut table = weights(config, json, MlpNames::Gated)?;
        apart(&mut table, config, sizes(json)?);
        Ok(table)
    },
};

pub(super) static THREE_FIVE_MOE: Family = Family {
    name: "qwen3_5_moe_text",
    architectures: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextModel"],
    prefix: "model.",
    config: |json| {
        let json = &json.defaulting(&MOE_DEFAULTS);
        mixture(json, hybrid(json)?, true)
    },
    weights: |config, json| {
        let json = &json.defaulting(&MOE_DEFAULTS);
        let mut table = weights(config, json, mixtures::EXPERTS)?;
        apart(&mut table, config, sizes(json)?);
        experts(&mut table, config);
        Ok(table)
    },
};

/// Hugging Face's defaults for fields missing from `config.json`: one model's own (`own`), plus those that all models
/// share.
fn defaults(mut own: Value) -> Value {
    let of_all = [
        ("head_dim", 256),
        ("linear_conv_kernel_dim", 4),
        ("linear_key_head_dim", 128),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("linear_value_head_dim", 128),
        ("max_position_embeddings", 32_768),
        ("num_attention_heads", 16),
    ];
    of_all.into_iter().for_each(|(field, value)| own[field] = json!(value));
    own
}

static NEXT_DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    defaults(json!({
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10, "num_experts": 512
    }))
});

static DENSE_DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    defaults(json!({
        "vocab_size": 248_320, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
        "num_key_value_heads": 4
    }))
});

static MOE_DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    defaults(json!({
        "vocab_size": 248_320, "hidden_size": 2048, "intermediate_size": 512, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8, "num_experts": 256
    }))
});

fn sizes(json: &HfConfig<'_>) -> Result<GatedDelta, ConfigError> {
    Ok(GatedDelta {
        n_key_heads: json.size("linear_num_key_heads")?,
        n_value_heads: json.size("linear_num_value_heads")?,
        d_key: json.size("linear_key_head_dim")?,
        d_value: json.size("linear_value_head_dim")?,
        width: json.size("linear_conv_kernel_dim")?,
    })
}

/// Settings with gated delta nets, and attention in every fourth layer or where `layer_types` specifies it.
fn hybrid(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config_turning(json, 0.25)?;
    if json.text("hidden_act", "silu")? != "silu" {
        // For convolutions and gates, the reference code uses the MLP's activation function, but its kernels use SiLU.
        return Err(json.unsupported("hidden_act"));
    }
    let net = MixerConfig::GatedDeltaNet(sizes(json)?);
    let attention = MixerConfig::Attention(AttentionConfig::new(base.n_kv_heads(), base.d_head()));
    let of = |kind: &Value| match kind.as_str() {
        Some("linear_attention") => Ok(net.clone()),
        Some("full_attention") => Ok(attention.clone()),
        _ => Err(ConfigError::UnknownValue {
            field: "layer_types",
            given: kind.to_string(),
            known: "full_attention, linear_attention",
        }),
    };
    let mixers: Vec<_> = match json.per_layer("layer_types", base.n_layers())? {
        Some(kinds) => kinds.iter().map(of).collect::<Result<_, _>>()?,
        None => {
            let every = json.size_or("full_attention_interval", 4)?;
            let kind = |layer: usize| if (layer + 1).is_multiple_of(every) { &attention } else { &net }.clone();
            (0..base.n_layers()).map(kind).collect()
        }
    };
    Ok(base.with_mixers(mixers)?.with_attn_gates(true).with_qk_norm(QkNorm::HEADS).with_default_prepend_bos(false))
}

fn mixture(json: &HfConfig<'_>, base: TransformerConfig, renormalize: bool) -> Result<TransformerConfig, ConfigError> {
    let shared = SharedExpert { d_mlp: json.size("shared_expert_intermediate_size")?, gated: true };
    let (experts, d_mlp) = qwen3_moe::experts(json)?;
    let experts = Experts { shared: Some(shared), renormalize, ..experts };
    Ok(mixtures::with_experts(base, (experts, d_mlp), qwen3_moe::dense_layers(json)?))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>, mlp: MlpNames) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("attention_bias", false)?;
    let biases = Biases { qkv: biased, output: biased, mlp: false };
    let names = Names { mlp, biases, norm_layout: Layout::OneLess, ..Names::LLAMA };
    let mut table = llama_like::weights_with(c, json, names)?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        if c.attends(layer) {
            // Each head's query, followed by its gate.
            for (part, start) in [("Q", 0), ("gate", 1)] {
                let layout = Layout::Grouped { start, take: 1, of: 2, groups: c.n_heads() };
                let to = |kind: &str| format!("blocks.{layer}.attn.{kind}_{part}");
                table.add(to("W"), from("self_attn.q_proj.weight"), layout);
                if biased {
                    table.add(to("b"), from("self_attn.q_proj.bias"), layout);
                }
            }
            continue;
        }
        let to = |part: &str| format!("blocks.{layer}.linear_attn.{part}");
        table.linear(&to("W_O"), &from("linear_attn.out_proj"), false);
        table.add(to("norm.w"), from("linear_attn.norm.weight"), Layout::AsIs);
        for part in ["A_log", "dt_bias"] {
            table.add(to(part), from(&format!("linear_attn.{part}")), Layout::AsIs);
        }
        table.add(to("conv"), from("linear_attn.conv1d.weight"), Layout::Filters);
    }
    Ok(table)
}

/// Adds a layer's projections. One tensor fuses queries, keys, values and gates, and a second tensor fuses the two
/// scalars per head; both tensors store everything that belongs to a key head together.
fn grouped(table: &mut WeightTable, layer: usize, net: GatedDelta) {
    let shared = net.n_value_heads / net.n_key_heads;
    let (keys, values) = (net.d_key, shared * net.d_value);
    let all = 2 * (keys + values);
    let each = [("Q", 0, keys), ("K", keys, keys), ("V", 2 * keys, values), ("gate", 2 * keys + values, values)];
    let wide = each.map(|(part, start, take)| ("in_proj_qkvz", part, start, take, all));
    let narrow = [("beta", 0), ("decay", shared)].map(|(part, start)| ("in_proj_ba", part, start, shared, 2 * shared));
    for (name, part, start, take, of) in wide.into_iter().chain(narrow) {
        let layout = Layout::Grouped { start, take, of, groups: net.n_key_heads };
        let from = format!("model.layers.{layer}.linear_attn.{name}.weight");
        table.add(format!("blocks.{layer}.linear_attn.W_{part}"), from, layout);
    }
}

/// Adds Qwen 3.5's projections: queries, keys and values one after another in one tensor, and each of the other
/// projections in its own tensor.
fn apart(table: &mut WeightTable, c: &TransformerConfig, net: GatedDelta) {
    for layer in (0..c.n_layers()).filter(|layer| !c.attends(*layer)) {
        let from = |part: &str| format!("model.layers.{layer}.linear_attn.{part}");
        let to = |part: &str| format!("blocks.{layer}.linear_attn.W_{part}");
        let keys = net.n_key_heads * net.d_key;
        for (part, start) in [("Q", 0), ("K", keys), ("V", 2 * keys)] {
            table.add(to(part), from("in_proj_qkv.weight"), Layout::Rows { start, of: net.channels() });
        }
        for (part, name) in [("gate", "in_proj_z"), ("beta", "in_proj_b"), ("decay", "in_proj_a")] {
            table.linear(&to(part), &from(name), false);
        }
    }
}

/// Adds the shared expert, and experts stored in two stacked tensors instead of three matrices each.
fn experts(table: &mut WeightTable, c: &TransformerConfig) {
    mixtures::add_shared(table, c, "mlp.shared_expert", None);
    for layer in 0..c.n_layers() {
        let Some(experts) = c.experts_of(layer) else { continue };
        let from = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
        table.linear(&to("shared.W_share"), &from("shared_expert_gate"), false);
        for index in 0..experts.count {
            for (part, start) in [("gate", 0), ("in", c.d_mlp())] {
                let layout = Layout::RowsOfStack { index, of: experts.count, start, rows: 2 * c.d_mlp() };
                table.or(&to(&format!("experts.{index}.W_{part}")), &from("experts.gate_up_proj"), layout);
            }
            let layout = Layout::OfStack { index, of: experts.count };
            table.or(&to(&format!("experts.{index}.W_out")), &from("experts.down_proj"), layout);
        }
    }
}
