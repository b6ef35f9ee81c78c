//! Granite 4: Granite's scales, Mamba-2 in most layers and attention in the others, and either a mixture of experts
//! with a shared expert or only a gated MLP.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::mamba2::Names as Mamba2;
use super::{Family, granite, granitemoe, llama_like, mamba2};
use crate::weight_files::WeightTable;
use hooklens_model::config::{
    AttentionConfig, Experts, Layers, MixerConfig, Positional, Settings, SharedExpert, StateSpace, TransformerConfig,
};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "granitemoehybrid",
    architectures: &["GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
        "mamba_d_conv": 4, "mamba_expand": 2
    })
});

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = granite::config(json)?;
    let shared = json.size("shared_intermediate_size")?;
    let positional = match json.maybe_text("position_embedding_type")?.unwrap_or("none") {
        "rope" => base.positional().clone(),
        "none" | "nope" => Positional::None,
        _ => return Err(json.unsupported("position_embedding_type")),
    };
    let mixers = mixers(json, &base)?;
    if json.text("hidden_act", "silu")? != "silu" && mixers.iter().any(|own| matches!(own, MixerConfig::Mamba2(_))) {
        return Err(json.unsupported("hidden_act"));
    }
    let count = json.number("num_local_experts", 0.0)?;
    let beside = Some(SharedExpert { d_mlp: shared, gated: false });
    let experts = match count > 0.0 {
        true => {
            let experts = Experts::new(json.size("num_local_experts")?, json.size("num_experts_per_tok")?);
            Some(Experts { shared: beside, ..experts })
        }
        false => None,
    };
    let d_mlp = if experts.is_some() { base.d_mlp() } else { shared };
    Ok(base.with_mixers(mixers)?.with_d_mlp(d_mlp).with_mixture(experts).with_positional(positional))
}

fn mixers(json: &HfConfig<'_>, base: &TransformerConfig) -> Result<Vec<MixerConfig>, ConfigError> {
    let space = MixerConfig::Mamba2(space(json, base.d_model())?);
    let attention = MixerConfig::Attention(AttentionConfig::new(base.n_kv_heads(), base.d_head()));
    let field = if json.get("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
    let of = |kind: &Value| match kind.as_str() {
        // Name used by transformers 5.
        Some("mamba" | "linear_attention") => Ok(space.clone()),
        Some("attention" | "full_attention") => Ok(attention.clone()),
        _ => Err(ConfigError::UnknownValue { field, given: kind.to_string(), known: "attention, mamba" }),
    };
    match json.per_layer(field, base.n_layers())? {
        Some(kinds) => kinds.iter().map(of).collect(),
        None => Ok(vec![space; base.n_layers()]),
    }
}

fn space(json: &HfConfig<'_>, d_model: usize) -> Result<StateSpace, ConfigError> {
    let n_heads = json.size("mamba_n_heads")?;
    let all = json.size("mamba_expand")?.saturating_mul(d_model);
    let d_head = json.share("mamba_n_heads", all, n_heads)?;
    mamba2::check_head_width(json, &format!("{all} channels in {n_heads} heads"), d_head)?;
    let (n_groups, width) = (json.size("mamba_n_groups")?, json.size("mamba_d_conv")?);
    Ok(StateSpace { n_groups, width, ..StateSpace::new(n_heads, d_head, json.size("mamba_d_state")?) })
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let names = Names { mlp: MlpNames::Other, ..Names::LLAMA.with_biases_of(json)? };
    let mut table = llama_like::weights_with(c, json, names)?;
    granitemoe::mlps(&mut table, c);
    let (maps, conv) = (json.flag("mamba_proj_bias", false)?, json.flag("mamba_conv_bias", true)?);
    Mamba2 { folder: "model.layers", part: "mamba", maps, outputs: maps, conv }.add(&mut table, c);
    granite::scale(&mut table, c, json)?;
    Ok(table)
}
