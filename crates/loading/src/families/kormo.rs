//! KORMo: Llama with different norm names.

use super::llama_like::Names;
use super::{Family, llama_like};

const NORMS: &[(&str, &str)] = &[("ln1", "pre_attention_layernorm"), ("ln2", "pre_mlp_layernorm")];

pub(super) static FAMILY: Family = Family {
    name: "kormo",
    architectures: &["KORMoForCausalLM", "KORMoModel"],
    prefix: "model.",
    config: llama_like::config,
    weights: |config, json| {
        let names = Names { norms: NORMS, ..Names::LLAMA.with_biases_of(json)? };
        llama_like::weights_with(config, json, names)
    },
};
