//! Phi 3 and 4: Llama with fused projections. Also the text model of Phi 4 Multimodal, whose files contain adapters for
//! images and speech beside the projections.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::TransformerConfig;
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family =
    Family { name: "phi3", architectures: &["Phi3ForCausalLM", "Phi3Model"], prefix: "model.", config, weights };

pub(super) static MULTIMODAL: Family = Family {
    name: "phi4mm",
    architectures: &["Phi4MMForCausalLM"],
    prefix: "model.",
    config,
    weights: |config, json| {
        let mut table = weights(config, json)?;
        let adapted = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"];
        for source in table.sources.values_mut() {
            if let Some(name) =
                source.name.strip_suffix(".weight").filter(|name| adapted.iter().any(|own| name.ends_with(own)))
            {
                source.name = format!("{name}.base_layer.weight");
            }
        }
        Ok(table)
    },
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"original_max_position_embeddings": 4096, "max_position_embeddings": 4096}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    let base = llama_like::config(json)?;
    let windows = llama_like::one_window(json, base.n_layers())?;
    base.with_eps(json.number("rms_norm_eps", 1e-5)?).with_default_prepend_bos(false).with_windows(windows)
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = llama_like::weights(c, json)?;
    for layer in 0..c.n_layers() {
        let name = format!("model.layers.{layer}.self_attn.qkv_proj");
        llama_like::fuse_attention(&mut table, c, layer, &name, false);
    }
    llama_like::fuse_gate(&mut table, c);
    Ok(table)
}
