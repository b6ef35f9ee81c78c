//! DeciLM and Llama-Nemotron (Super, Ultra): Llama with per-layer numbers of key/value heads and MLP widths found by
//! architecture search. Layers may lack attention or the MLP.

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::Names;
use super::{Family, llama_like};
use hooklens_model::config::{AttentionConfig, Layers, MixerConfig, MlpConfig, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "nemotron-nas",
    architectures: &["DeciLMForCausalLM", "DeciLMModel"],
    prefix: "model.",
    config,
    weights: |c, json| llama_like::weights_with(c, json, Names::LLAMA.with_biases_of(json)?),
};

/// Number of key/value heads and number of neurons in a layer; `None` for a part that the layer lacks.
type Parts = (Option<usize>, Option<usize>);

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let parts = parts(json)?;
    let n_kv_heads = parts.iter().find_map(|(heads, _)| *heads);
    let d_mlp = match parts.iter().find_map(|(_, width)| *width) {
        Some(width) => width,
        None => json.size("hidden_size")?,
    };
    let base = llama_like::config_of(json, 1.0, n_kv_heads, d_mlp, json.number("rms_norm_eps", 1e-6)?)?;
    let d_head = base.d_head();
    let mixer = |(heads, _): &Parts| match heads {
        Some(heads) => MixerConfig::Attention(AttentionConfig::new(*heads, d_head)),
        None => MixerConfig::None,
    };
    let mlp = |(_, width): &Parts| width.map_or(MlpConfig::None, |d_mlp| MlpConfig::Gated { d_mlp });
    base.with_mixers(parts.iter().map(mixer))?.with_mlps(parts.iter().map(mlp))
}

fn parts(json: &HfConfig<'_>) -> Result<Vec<Parts>, ConfigError> {
    let n_layers = json.layers("num_hidden_layers")?;
    if let Some(blocks) = json.per_layer("block_configs", n_layers)? {
        return blocks.iter().map(|block| of_block(json, block)).collect();
    }
    // DeciLM's own models list only the numbers of key/value heads.
    let width = json.size("intermediate_size")?;
    let heads = json.per_layer("num_key_value_heads_per_layer", n_layers)?;
    let heads = heads.ok_or_else(|| json.unsupported("block_configs"))?;
    let of = |heads: &Value| match heads.as_u64() {
        Some(heads) => Ok((Some(heads as usize), Some(width))),
        None => Err(json.unsupported("num_key_value_heads_per_layer")),
    };
    heads.iter().map(of).collect()
}

fn of_block(json: &HfConfig<'_>, block: &Value) -> Result<Parts, ConfigError> {
    let (attention, mlp) = (&block["attention"], &block["ffn"]);
    let whole = |part: &Value| part.is_object() && known(part);
    if !whole(attention) || !whole(mlp) {
        let given = block.to_string();
        return Err(ConfigError::UnsupportedVariant { family: json.family(), field: "block_configs", given });
    }
    let lacks = |part: &Value| part["no_op"] == json!(true);
    let heads = match lacks(attention) {
        true => None,
        false => {
            let sharing = attention["n_heads_in_group"].as_u64().unwrap_or(0) as usize;
            Some(json.share("block_configs", json.size("num_attention_heads")?, sharing)?)
        }
    };
    let d_model = json.size("hidden_size")?;
    let width = match lacks(mlp) {
        true => None,
        false => Some(match (mlp["intermediate_size"].as_u64(), mlp["ffn_mult"].as_f64()) {
            (Some(width), _) => width as usize,
            // Formula of Llama's original code.
            (None, Some(times)) => ((2.0 * times * d_model as f64 / 3.0) as usize).next_multiple_of(256),
            (None, None) => return Err(json.unsupported("block_configs")),
        }),
    };
    Ok((heads, width))
}

/// Whether a part of a block is supported, that is, has no linear replacement, window or experts.
fn known(part: &Value) -> bool {
    let unset = |value: &Value| value.is_null() || *value == json!(false);
    let others = ["replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "moe", "mamba", "llama4"];
    let windows = ["use_prefill_window_in_sink_attention", "unshifted_sink", "is_mamba"];
    others.iter().chain(&windows).all(|field| unset(&part[*field]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::families::{Described, read};
    use hooklens_model::config::{AttentionConfig, Layers, MixerConfig};

    /// Sizes of the first layers of Llama 3.3 Nemotron Super 49B.
    #[test]
    fn widths_are_those_of_published_models() {
        let attention = json!({"n_heads_in_group": 8, "no_op": false, "replace_with_linear": false});
        let none = json!({"n_heads_in_group": null, "no_op": true, "replace_with_linear": false});
        let mlp =
            |times: f64| json!({"ffn_mult": times, "no_op": false, "replace_with_linear": false, "sparsify": null});
        let mut json = json!({
            "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "hidden_size": 8192, "num_hidden_layers": 3,
            "num_attention_heads": 64, "num_key_value_heads": null, "intermediate_size": null, "vocab_size": 128_256,
            "max_position_embeddings": 131_072, "rope_theta": 5e5, "block_configs": [
                {"attention": attention, "ffn": mlp(2.625)}, {"attention": none, "ffn": mlp(5.25)},
                {"attention": attention, "ffn": {"no_op": true}},
            ],
        });
        let Described::Decoder(_, config) = read(&json).unwrap() else { panic!("no decoder") };
        config.validate().unwrap();
        assert_eq!((0..3).map(|layer| config.d_mlp_of(layer)).collect::<Vec<_>>(), [14_336, 28_672, 0]);
        let mixers = [MixerConfig::Attention(AttentionConfig::new(8, 128)), MixerConfig::None];
        assert_eq!(config.layers()[..2].iter().map(|layer| layer.mixer.clone()).collect::<Vec<_>>(), mixers);
        json["block_configs"][1]["attention"]["replace_with_linear"] = json!(true);
        assert!(read(&json).unwrap_err().to_string().contains("replace_with_linear"));
    }
}
