//! StarCoder 2: layer norms, biases, rotary positions, a plain MLP.

use super::hf_config::HfConfig;
use super::llama_like::{Biases, Names};
use super::{Family, llama_like};
use crate::weight_files::WeightTable;
use hooklens_model::config::{ActivationFn, NormKind, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "starcoder2",
    architectures: &["Starcoder2ForCausalLM", "Starcoder2Model"],
    prefix: "model.",
    config,
    weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = llama_like::config(json)?;
    let windows = llama_like::one_window(json, base.n_layers())?;
    base.with_gated_mlp(false)
        .with_norm(NormKind::LayerNorm)
        .with_eps(json.number("norm_epsilon", 1e-5)?)
        .with_activation(json.text("hidden_act", "gelu_pytorch_tanh")?.parse::<ActivationFn>()?)
        .with_default_prepend_bos(false)
        .with_windows(windows)
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("use_bias", true)?;
    let biases = Biases { qkv: biased, output: biased, mlp: biased };
    let mut table = llama_like::weights_with(config, json, Names { biases, norms: &[], tied: true, ..Names::LLAMA })?;
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        table.norm(&to("ln1"), &from("input_layernorm"));
        table.norm(&to("ln2"), &from("post_attention_layernorm"));
        table.remove(&to("mlp.W_gate"));
        table.remove(&to("mlp.b_gate"));
        table.linear(&to("mlp.W_in"), &from("mlp.c_fc"), biased);
        table.linear(&to("mlp.W_out"), &from("mlp.c_proj"), biased);
    }
    table.norm("ln_final", "model.norm");
    Ok(table)
}
