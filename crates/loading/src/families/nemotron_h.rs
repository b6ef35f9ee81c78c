//! Nemotron-H: each layer is one of Mamba-2, attention without positions, a plain MLP, or a mixture of plain experts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, mamba2, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ActivationFn, AttentionConfig, Experts, Layers, MOST_LAYERS, MixerConfig, MlpConfig, NormKind, Positional,
    SharedExpert, StateSpace, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "nemotron_h",
    architectures: &["NemotronHForCausalLM", "NemotronHModel"],
    prefix: "backbone.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 131_072, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 4096, "intermediate_size": 21_504, "mlp_hidden_act": "relu2", "ssm_state_size": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2
    })
});

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Mamba2,
    Attention,
    Mlp,
    Mixture,
}

/// Kind of each layer, from a list or a string with one letter per layer.
fn parts(json: &HfConfig<'_>) -> Result<Vec<Part>, ConfigError> {
    let unknown = |field, given: String| {
        let known = "mamba or M, attention or *, mlp or -, moe or E";
        Err(ConfigError::UnknownValue { field, given, known })
    };
    let field = if json.get("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
    if let Some(kinds) = json.list(field)? {
        let of = |kind: &Value| match kind.as_str() {
            Some("mamba" | "linear_attention") => Ok(Part::Mamba2),
            Some("attention" | "full_attention") => Ok(Part::Attention),
            Some("mlp") => Ok(Part::Mlp),
            Some("moe") => Ok(Part::Mixture),
            _ => unknown(field, kind.to_string()),
        };
        return kinds.iter().map(of).collect();
    }
    let of = |letter: char| match letter {
        'M' => Ok(Part::Mamba2),
        '*' => Ok(Part::Attention),
        '-' => Ok(Part::Mlp),
        'E' => Ok(Part::Mixture),
        _ => unknown("hybrid_override_pattern", format!("`{letter}`")),
    };
    json.text("hybrid_override_pattern", "ME*-")?.chars().map(of).collect()
}

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let parts = parts(json)?;
    if let Some(layers) = json.maybe_size("num_hidden_layers")?.filter(|layers| *layers != parts.len()) {
        let reason = format!("it is {layers}, but {} layers are listed", parts.len());
        return Err(ConfigError::Contradiction { field: "num_hidden_layers", reason });
    }
    if parts.len() > MOST_LAYERS {
        return Err(ConfigError::BadSize { field: "num_hidden_layers", given: parts.len() });
    }
    for field in ["moe_latent_size", "sliding_window"] {
        if json.get(field).is_some() {
            return Err(json.unsupported(field));
        }
    }
    if json.flag("attention_bias", false)? {
        return Err(json.unsupported("attention_bias"));
    }
    if json.text("mamba_hidden_act", "silu")? != "silu" {
        return Err(json.unsupported("mamba_hidden_act"));
    }
    let n_heads = json.size("num_attention_heads")?;
    let n_kv_heads = json.maybe_size("num_key_value_heads")?.unwrap_or(n_heads);
    let d_head = match json.maybe_size("head_dim")? {
        Some(d_head) => d_head,
        None => json.size_or("attention_head_dim", 128)?,
    };
    let n_groups = json.size("n_groups")?;
    let heads = [json.size("mamba_num_heads")?, json.size("mamba_head_dim")?];
    let space = StateSpace {
        n_groups,
        width: json.size("conv_kernel")?,
        norm_groups: n_groups,
        least_step: json.number("time_step_min", 0.001)?,
        ..StateSpace::new(heads[0], heads[1], json.size("ssm_state_size")?)
    };
    let mixer = |part: &Part| match part {
        Part::Mamba2 => MixerConfig::Mamba2(space),
        Part::Attention => MixerConfig::Attention(AttentionConfig::new(n_kv_heads, d_head)),
        Part::Mlp | Part::Mixture => MixerConfig::None,
    };
    let d_mlp = json.size("intermediate_size")?;
    let mixture = match parts.contains(&Part::Mixture) {
        false => MlpConfig::None,
        true => {
            let (experts, d_mlp) = mixtures::deepseek(json)?;
            let width = json.size("moe_shared_expert_intermediate_size")?;
            let shared = Some(SharedExpert { d_mlp: width, gated: false });
            MlpConfig::Experts { experts: Experts { shared, ..experts }, d_mlp, gated: false }
        }
    };
    let mlp = |part: &Part| match part {
        Part::Mamba2 | Part::Attention => MlpConfig::None,
        Part::Mlp => MlpConfig::Dense { d_mlp },
        Part::Mixture => mixture,
    };
    let (d_model, d_vocab) = (json.size("hidden_size")?, json.size("vocab_size")?);
    TransformerConfig::new(parts.len(), d_model, n_heads, d_vocab, json.size("max_position_embeddings")?)
        .with_positional(Positional::None)
        .with_attn_scale((d_head as f64).sqrt())
        .with_norm(NormKind::Rms)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.text("mlp_hidden_act", "relu2")?.parse::<ActivationFn>()?)
        .with_mixers(parts.iter().map(mixer))?
        .with_mlps(parts.iter().map(mlp))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.add("embed.W_E", "backbone.embeddings.weight", Layout::AsIs);
    let biased = json.flag("mlp_bias", false)?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("backbone.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        let norm = if c.mixes(layer) { "ln1.w" } else { "ln2.w" };
        table.add(to(norm), from("norm.weight"), Layout::AsIs);
        if c.attends(layer) {
            for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "o_proj")] {
                table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("mixer.{name}")), false);
            }
        }
        let mut mlp = |into: &str, name: &str, biased: bool| {
            for (part, own) in [("in", "up_proj"), ("out", "down_proj")] {
                table.linear(&to(&format!("{into}.W_{part}")), &from(&format!("{name}.{own}")), biased);
            }
        };
        if !c.has_mlp(layer) {
            continue;
        }
        let Some(experts) = c.experts_of(layer) else {
            mlp("mlp", "mixer", biased);
            continue;
        };
        for expert in 0..experts.count {
            mlp(&format!("mlp.experts.{expert}"), &format!("mixer.experts.{expert}"), false);
        }
        mlp("mlp.shared", "mixer.shared_experts", biased);
        table.linear(&to("mlp.W_gate"), &from("mixer.gate"), false);
        table.add(to("mlp.choice_bias"), from("mixer.gate.e_score_correction_bias"), Layout::AsIs);
    }
    let (maps, conv) = (json.flag("use_bias", false)?, json.flag("use_conv_bias", true)?);
    mamba2::Names { folder: "backbone.layers", part: "mixer", maps, outputs: maps, conv }.add(&mut table, c);
    table.add("ln_final.w", "backbone.norm_f.weight", Layout::AsIs);
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}
