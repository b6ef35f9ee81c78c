//! Granite MoE: Granite with a mixture of experts, in some models with a shared expert.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::hf_config::HfConfig;
use super::llama_like::{MlpNames, Names};
use super::{Family, granite, llama_like, mixtures};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Experts, Layers, SharedExpert, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "granitemoe",
    architectures: &["GraniteMoeForCausalLM", "GraniteMoeModel"],
    prefix: "model.",
    config,
    weights,
};

/// Granite MoE with a shared expert.
pub(super) static SHARED: Family = Family {
    name: "granitemoeshared",
    architectures: &["GraniteMoeSharedForCausalLM", "GraniteMoeSharedModel"],
    prefix: "model.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"num_local_experts": 8, "num_experts_per_tok": 2}));

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    if json.text("position_embedding_type", "rope")? != "rope" {
        return Err(json.unsupported("position_embedding_type"));
    }
    let base = granite::config(json)?;
    let width = if json.is_of(&SHARED) { json.size_or("shared_intermediate_size", 0)? } else { 0 };
    let shared = (width > 0).then_some(SharedExpert { d_mlp: width, gated: false });
    let experts = Experts::new(json.size("num_local_experts")?, json.size("num_experts_per_tok")?);
    Ok(base.with_mixture(Experts { shared, ..experts }))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let names = Names { mlp: MlpNames::Other, ..Names::LLAMA.with_biases_of(json)? };
    let mut table = llama_like::weights_with(c, json, names)?;
    mlps(&mut table, c);
    granite::scale(&mut table, c, json)?;
    Ok(table)
}

/// Adds the mixtures of experts and the shared experts, or the gated MLPs. All store both halves of the gated
/// projection in one tensor.
pub(super) fn mlps(table: &mut WeightTable, c: &TransformerConfig) {
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let halves = |table: &mut WeightTable, own: &str, d_mlp: usize| {
            for (part, start) in [("gate", 0), ("in", d_mlp)] {
                let layout = Layout::Rows { start, of: 2 * d_mlp };
                table.add(to(&format!("{own}W_{part}")), from("shared_mlp.input_linear"), layout);
            }
            table.add(to(&format!("{own}W_out")), from("shared_mlp.output_linear"), Layout::Transposed);
        };
        let Some(experts) = c.experts() else {
            halves(table, "", c.d_mlp());
            continue;
        };
        table.add(to("W_gate"), from("block_sparse_moe.router.layer"), Layout::Transposed);
        let folder = format!("model.layers.{layer}.block_sparse_moe");
        mixtures::add_halved(table, &to("experts"), &folder, experts.count, c.d_mlp());
        if let Some(shared) = experts.shared {
            halves(table, "shared.", shared.d_mlp);
        }
    }
}
