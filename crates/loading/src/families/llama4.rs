//! Llama 4 (text): some layers have no rotary positions and scale queries by position; the others attend within chunks
//! and have query and key norms without weights. The router's weight multiplies the experts' input.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, llama_like, mixtures};
use crate::weight_files::WeightTable;
use hooklens_model::config::{
    Experts, Layers, NormKind, Positional, QkNorm, QueryGrowth, RouterFn, Settings, SharedExpert, TransformerConfig,
    Window,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "llama4_text",
    architectures: &["Llama4ForCausalLM", "Llama4TextModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "attention_chunk_size": 8192,
        "num_local_experts": 16, "floor_scale": 8192, "attn_scale": 0.1,
    })
});

/// Which layers have rotary positions, from a list of ones and zeros or a fixed interval of layers without them.
fn rotates(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    if json.list("no_rope_layers")?.is_none_or(Vec::is_empty) {
        let interval = json.size_or("no_rope_layer_interval", 4)?.max(1);
        return Ok((0..n_layers).map(|layer| (layer + 1) % interval != 0).collect());
    }
    let layers = json.per_layer("no_rope_layers", n_layers)?.into_iter().flatten();
    let rotates = |layer: &Value| match layer.as_u64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(ConfigError::UnknownValue { field: "no_rope_layers", given: layer.to_string(), known: "0, 1" }),
    };
    layers.map(rotates).collect()
}

/// Attention chunks of the layers. Without a list of layer types, the layers with rotary positions have chunks.
fn windows(json: &HfConfig<'_>, rotates: &[bool]) -> Result<Vec<Option<Window>>, ConfigError> {
    let chunked = |kind: &Value| match kind.as_str() {
        Some("chunked_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(json.unsupported("layer_types")),
    };
    let chunked: Vec<bool> = match json.per_layer("layer_types", rotates.len())? {
        Some(kinds) => kinds.iter().map(chunked).collect::<Result<_, _>>()?,
        None => rotates.to_vec(),
    };
    let chunk = json.size("attention_chunk_size")?;
    Ok(chunked.into_iter().map(|chunked| chunked.then_some(Window::Chunked(chunk))).collect())
}

/// Which layers are mixtures of experts, from a list or a fixed interval.
fn mixed(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(listed) = json.list("moe_layers")? else {
        let step = json.size_or("interleave_moe_layer_step", 1)?;
        return match step {
            0 => Err(json.unsupported("interleave_moe_layer_step")),
            _ => Ok((0..n_layers).map(|layer| (layer + 1) % step == 0).collect()),
        };
    };
    let number = |layer: &Value| layer.as_u64().ok_or_else(|| json.unsupported("moe_layers"));
    let listed: Vec<u64> = listed.iter().map(number).collect::<Result<_, _>>()?;
    Ok((0..n_layers).map(|layer| listed.contains(&(layer as u64))).collect())
}

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::of_neighbors(llama_like::config(json)?);
    let rotates = rotates(json, base.n_layers())?;
    let layer_rotary = match base.positional() {
        Positional::Rotary(rotary) if rotates.contains(&false) => {
            rotates.iter().map(|rotates| rotates.then(|| rotary.clone())).collect()
        }
        _ => Vec::new(),
    };
    let qk_norm = json.flag("use_qk_norm", true)?.then_some(QkNorm {
        kind: NormKind::RmsPre,
        after_rotation: true,
        rotating_layers: true,
        ..QkNorm::HEADS
    });
    // The published files have 4 here, which is not a factor: any nonzero number means true.
    let query_growth = match json.truthy("attn_temperature_tuning", true)? {
        true => Some(QueryGrowth {
            rate: json.needed_number("attn_scale")?,
            context: json.size("floor_scale")?,
            ahead: 1,
            still_layers: true,
        }),
        false => None,
    };
    let d_mlp = json.size("intermediate_size")?;
    let experts = Experts {
        router: RouterFn::Sigmoid,
        renormalize: false,
        scales_inputs: true,
        shared: Some(SharedExpert { d_mlp, gated: false }),
        ..Experts::new(json.size("num_local_experts")?, json.size_or("num_experts_per_tok", 1)?)
    };
    let mixed = mixed(json, base.n_layers())?;
    let base = base
        .with_d_mlp(json.size("intermediate_size_mlp")?)
        .with_qk_norm(qk_norm)
        .with_query_growth(query_growth)
        .with_windows(windows(json, &rotates)?)?
        .with_layer_rotary(layer_rotary)?;
    Ok(mixtures::with_experts(base, (experts, d_mlp), |layer| !mixed[layer]))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let mut table = llama_like::weights_with(c, json, Names { mlp: MlpNames::Other, ..Names::LLAMA })?;
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.feed_forward.{part}");
        let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let mut gated = |own: &str, name: &str| {
            for (part, projection) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
                table.linear(&to(&format!("{own}W_{part}")), &from(&format!("{name}{projection}")), false);
            }
        };
        let Some(experts) = c.experts_of(layer) else {
            gated("", "");
            continue;
        };
        gated("shared.", "shared_expert.");
        table.linear(&to("W_gate"), &from("router"), false);
        mixtures::add_stacked(&mut table, &to("experts"), &from("experts"), experts.count);
    }
    Ok(table)
}
