//! Llama 1, 2, 3, 3.1, 3.2, 3.3 and models of the same architecture.

use super::{Family, llama_like};

pub(super) static FAMILY: Family = Family {
    name: "llama",
    architectures: &[
        "LlamaForCausalLM",
        "LlamaModel",
        "LLaMAForCausalLM",
        "AquilaForCausalLM",
        "AquilaModel",
        "XverseForCausalLM",
        "XverseModel",
    ],
    prefix: "model.",
    config: llama_like::config,
    weights: llama_like::weights,
};
