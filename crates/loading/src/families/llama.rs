//! Llama 1, 2, 3, 3.1, 3.2, 3.3 and models of the same architecture.

use super::hf_config::HfConfig;
use super::{Family, llama_like};
use hooklens_model::config::{Settings, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "llama",
    architectures: &[
        "LlamaForCausalLM",
        "LlamaModel",
        "LLaMAForCausalLM",
        "AquilaForCausalLM",
        "AquilaModel",
        "IQuestCoderForCausalLM",
        "IQuestCoderModel",
        "XverseForCausalLM",
        "XverseModel",
    ],
    prefix: "model.",
    config,
    weights: llama_like::weights,
};

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // IQuest Coder's code uses this field; Llama's does not.
    if json.architecture().starts_with("IQuest") && json.flag("use_sliding_window", false)? {
        return Err(json.unsupported("use_sliding_window"));
    }
    Ok(llama_like::config(json)?.with_qkv_clip(json.maybe_number("clip_qkv")?))
}
