//! Model families: how a `config.json` becomes a [`TransformerConfig`], and which tensor of the
//! files is which weight. A family is one file and one line in [`FAMILIES`].

mod baichuan;
mod bloom;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod granite;
mod hf_config;
mod hooked_transformer;
mod llama;
mod llama2c;
mod llama_like;
mod mistral;
mod mixtral;
mod nanogpt;
mod olmo;
mod olmo2;
mod olmoe;
mod opt;
mod phi;
mod phi3;
mod qwen1;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;
mod santacoder;
mod smollm3;
mod stablelm;
mod starcoder2;

use serde_json::Value;

use crate::config::TransformerConfig;
use crate::error::ConfigError;
use crate::loading::WeightTable;
use hf_config::HfConfig;

pub(crate) use hooked_transformer::{to_json as native_json, weights as native_weights};

/// One family of models.
#[derive(Debug)]
pub(crate) struct Family {
    /// What users call it.
    pub(crate) name: &'static str,
    /// The `architectures` of its `config.json`.
    pub(crate) architectures: &'static [&'static str],
    /// Prefix of tensor names that some of its files leave out.
    pub(crate) prefix: &'static str,
    config: fn(&HfConfig<'_>) -> Result<TransformerConfig, ConfigError>,
    weights: fn(&TransformerConfig, &HfConfig<'_>) -> Result<WeightTable, ConfigError>,
}

impl Family {
    /// Where the files hold each weight.
    pub(crate) fn weights_table(&self, config: &TransformerConfig, json: &Value) -> Result<WeightTable, ConfigError> {
        let mut table = (self.weights)(config, &HfConfig::new(self.name, json))?;
        table.prefix = self.prefix;
        Ok(table)
    }
}

/// Every family, in the order error messages list them.
static FAMILIES: &[&Family] = &[
    &baichuan::FAMILY,
    &bloom::FAMILY,
    &falcon::FAMILY,
    &gpt2::FAMILY,
    &gpt_bigcode::FAMILY,
    &gpt_neo::FAMILY,
    &gpt_neox::FAMILY,
    &gptj::FAMILY,
    &granite::FAMILY,
    &llama::FAMILY,
    &llama2c::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &nanogpt::FAMILY,
    &olmo::FAMILY,
    &olmo2::FAMILY,
    &olmoe::FAMILY,
    &opt::FAMILY,
    &phi::FAMILY,
    &phi3::FAMILY,
    &qwen1::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &santacoder::FAMILY,
    &smollm3::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &hooked_transformer::FAMILY,
];

/// The architecture a `config.json` names.
pub(crate) fn architecture(json: &Value) -> Result<&str, ConfigError> {
    let malformed = |reason: &str| ConfigError::Malformed { reason: reason.to_string() };
    let listed = json.get("architectures").and_then(|a| a.as_array()).and_then(|a| a.first()).and_then(Value::as_str);
    if listed.is_none() && json.get("model_type").is_none() && json.get("d_model").is_some() {
        // The toy models of TransformerLens's authors name no architecture.
        return Ok("HookedTransformer");
    }
    // Checkpoints of base models name only their type.
    listed.or_else(|| json.get("model_type").and_then(Value::as_str)).ok_or_else(|| {
        if json.is_object() {
            malformed("it names neither `architectures` nor `model_type`")
        } else {
            malformed("it is not a JSON object")
        }
    })
}

/// The family and the configuration of a `config.json`.
///
/// # Errors
/// [`ConfigError`]: an architecture no family covers, a field that is missing or contradictory.
pub(crate) fn read(json: &Value) -> Result<(&'static Family, TransformerConfig), ConfigError> {
    let given = architecture(json)?;
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or(given);
    let by_architecture = FAMILIES.iter().find(|f| f.architectures.contains(&given));
    let by_type = || FAMILIES.iter().find(|f| f.name == model_type && given == model_type);
    let Some(family) = by_architecture.or_else(by_type) else {
        let supported = FAMILIES.iter().map(|f| f.architectures[0]).collect();
        return Err(ConfigError::UnknownArchitecture { given: given.to_string(), supported });
    };
    let config = (family.config)(&HfConfig::new(family.name, json))?;
    config.validate()?;
    Ok((family, config))
}
