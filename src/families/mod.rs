//! Model families: how a `config.json` becomes a [`TransformerConfig`], and which tensor of the
//! files is which weight. A family is one file and one line in [`FAMILIES`].

mod gpt2;
mod gpt_neox;
mod hf_config;
mod hooked_transformer;
mod llama;
mod llama_like;
mod mistral;
mod qwen2;
mod rope;

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
static FAMILIES: &[&Family] =
    &[&gpt2::FAMILY, &gpt_neox::FAMILY, &llama::FAMILY, &mistral::FAMILY, &qwen2::FAMILY, &hooked_transformer::FAMILY];

/// The architecture a `config.json` names.
pub(crate) fn architecture(json: &Value) -> Result<&str, ConfigError> {
    let malformed = |reason: &str| ConfigError::Malformed { reason: reason.to_string() };
    let listed = json.get("architectures").and_then(|a| a.as_array()).and_then(|a| a.first()).and_then(Value::as_str);
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
