//! Typed access to a `config.json`, with errors that name the field.

use serde_json::Value;

use hooklens_io::excerpt::excerpt;
use hooklens_model::config::{MOST_LAYERS, TransformerConfig};
use hooklens_model::error::ConfigError;

/// A `config.json`, read field by field.
///
/// Absent and null fields differ: transformers uses its default for an absent field and Python's `None` for null. Each
/// accessor documents what null means. If an accessor takes a default, null never means that default: `None` is falsy,
/// so [`flag`](Self::flag) returns false, and for numbers, sizes and strings null is an error. Accessors that start
/// with `maybe_`, and those for lists and objects, treat null like an absent field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HfConfig<'j> {
    family: &'static str,
    json: &'j Value,
    /// Defaults of the family's own code for absent fields; null fields do not use them.
    defaults: Option<&'j Value>,
}

impl<'j> HfConfig<'j> {
    /// Usual names of the number of layers, the width and the number of heads.
    pub(crate) const SIZES: [&'static str; 3] = ["num_hidden_layers", "hidden_size", "num_attention_heads"];

    pub(crate) fn new(family: &'static str, json: &'j Value) -> Self {
        Self { family, json, defaults: None }
    }

    /// Adds defaults for absent fields.
    pub(crate) fn defaulting(self, defaults: &'static Value) -> Self {
        Self { defaults: Some(defaults), ..self }
    }

    /// The configuration without defaults.
    pub(crate) fn given(&self) -> Self {
        Self { defaults: None, ..*self }
    }

    /// The value of a field that is present or has a default; may be null.
    fn value(&self, field: &str) -> Option<&'j Value> {
        self.json.get(field).or_else(|| self.defaults?.get(field))
    }

    /// The value of a field that is present or has a default, and is not null.
    pub(crate) fn get(&self, field: &str) -> Option<&'j Value> {
        self.value(field).filter(|value| !value.is_null())
    }

    /// The family that the configuration is read as.
    pub(crate) fn family(&self) -> &'static str {
        self.family
    }

    /// The architecture named in the configuration.
    pub(crate) fn architecture(&self) -> &'j str {
        super::architecture(self.json).unwrap_or_default()
    }

    /// Whether the configuration is read as this family.
    pub(crate) fn is_of<C>(&self, family: &super::Family<C>) -> bool {
        self.family == family.name
    }

    /// A nested object; `None` if absent or null.
    pub(crate) fn object(&self, field: &str) -> Result<Option<HfConfig<'j>>, ConfigError> {
        let Some(json) = self.get(field) else { return Ok(None) };
        if !json.is_object() {
            return Err(self.wrong(field, json, "an object"));
        }
        Ok(Some(HfConfig::new(self.family, json)))
    }

    /// Whether a field is present or has a default; it may be null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.value(field).is_some()
    }

    /// Whether a field is null.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.value(field).is_some_and(Value::is_null)
    }

    /// A list with one entry per layer; `None` if absent or null.
    pub(crate) fn per_layer(
        &self,
        field: &'static str,
        n_layers: usize,
    ) -> Result<Option<&'j Vec<Value>>, ConfigError> {
        match self.list(field)? {
            Some(list) if list.len() != n_layers => {
                let reason = format!("it has {} entries, but the model has {n_layers} layers", list.len());
                Err(ConfigError::Contradiction { field, reason })
            }
            list => Ok(list),
        }
    }

    fn wrong(&self, field: &str, value: &Value, wanted: &str) -> ConfigError {
        ConfigError::Malformed { reason: format!("`{field}` is {}, not {wanted}", excerpt(value)) }
    }

    /// The error for a missing required field.
    pub(crate) fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Malformed { reason: format!("missing field `{field}`, which {} models require", self.family) }
    }

    /// A required size.
    pub(crate) fn size(&self, field: &str) -> Result<usize, ConfigError> {
        self.sized(field, self.value(field))?.ok_or_else(|| self.missing(field))
    }

    /// A size, or `default` if it is absent. Null is an error.
    pub(crate) fn size_or(&self, field: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.sized(field, self.value(field))?.unwrap_or(default))
    }

    /// A size; `None` if absent or null.
    pub(crate) fn maybe_size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.sized(field, self.get(field))
    }

    fn sized(&self, field: &str, value: Option<&Value>) -> Result<Option<usize>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        size.map(Some).ok_or_else(|| self.wrong(field, value, "a non-negative integer"))
    }

    /// The required number of layers. It is validated immediately, because lists with one entry per layer are allocated
    /// from it.
    pub(crate) fn layers(&self, field: &'static str) -> Result<usize, ConfigError> {
        let given = self.size(field)?;
        if given > MOST_LAYERS { Err(ConfigError::BadSize { field, given }) } else { Ok(given) }
    }

    /// Creates a base configuration from these fields: number of layers, width, and the number of heads that the width
    /// is divided among.
    pub(crate) fn sizes(
        &self,
        [layers, width, heads]: [&'static str; 3],
        n_ctx: usize,
    ) -> Result<TransformerConfig, ConfigError> {
        let (d_model, n_heads) = (self.size(width)?, self.size(heads)?);
        self.share(heads, d_model, n_heads)?;
        Ok(TransformerConfig::new(self.layers(layers)?, d_model, n_heads, self.size("vocab_size")?, n_ctx))
    }

    /// A number, or `default` if it is absent. Null is an error.
    pub(crate) fn number(&self, field: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.numeric(field, self.value(field))?.unwrap_or(default))
    }

    /// A required number.
    pub(crate) fn needed_number(&self, field: &str) -> Result<f64, ConfigError> {
        self.numeric(field, self.value(field))?.ok_or_else(|| self.missing(field))
    }

    /// A number; `None` if absent or null.
    pub(crate) fn maybe_number(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.numeric(field, self.get(field))
    }

    fn numeric(&self, field: &str, value: Option<&Value>) -> Result<Option<f64>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(field, value, "a number"))
    }

    /// A boolean, or `default` if absent. Null is false.
    pub(crate) fn flag(&self, field: &str, default: bool) -> Result<bool, ConfigError> {
        match self.value(field) {
            None => Ok(default),
            Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(field, value, "true or false")),
        }
    }

    /// A boolean by Python's rules, or `default` if absent: a number is true unless it is zero. Null is false.
    pub(crate) fn truthy(&self, field: &str, default: bool) -> Result<bool, ConfigError> {
        match self.value(field) {
            Some(Value::Number(number)) => Ok(number.as_f64() != Some(0.0)),
            Some(Value::Null | Value::Bool(_)) | None => self.flag(field, default),
            Some(value) => Err(self.wrong(field, value, "true, false or a number")),
        }
    }

    /// A string, or `default` if absent. Null is an error.
    pub(crate) fn text(&self, field: &str, default: &'j str) -> Result<&'j str, ConfigError> {
        Ok(self.textual(field, self.value(field))?.unwrap_or(default))
    }

    /// A string; `None` if absent or null.
    pub(crate) fn maybe_text(&self, field: &str) -> Result<Option<&'j str>, ConfigError> {
        self.textual(field, self.get(field))
    }

    fn textual(&self, field: &str, value: Option<&'j Value>) -> Result<Option<&'j str>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, value, "a string"))
    }

    /// A list; `None` if absent or null.
    pub(crate) fn list(&self, field: &str) -> Result<Option<&'j Vec<Value>>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_array().map(Some).ok_or_else(|| self.wrong(field, value, "a list"))
    }

    /// A required list of numbers.
    pub(crate) fn numbers(&self, field: &str) -> Result<Vec<f64>, ConfigError> {
        let list = self.list(field)?.ok_or_else(|| self.missing(field))?;
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.wrong(field, value, "a number"));
        list.iter().map(number).collect()
    }

    /// The error for a variant of the family that is not supported.
    pub(crate) fn unsupported(&self, field: &'static str) -> ConfigError {
        let given = self.value(field).map_or("absent".to_string(), excerpt);
        ConfigError::UnsupportedVariant { family: self.family, field, given }
    }

    /// `whole / parts`; an error if it is not an integer.
    pub(crate) fn share(&self, field: &'static str, whole: usize, parts: usize) -> Result<usize, ConfigError> {
        if parts == 0 || !whole.is_multiple_of(parts) {
            let reason = format!("{whole} can't be divided evenly among {parts} heads");
            return Err(ConfigError::Contradiction { field, reason });
        }
        Ok(whole / parts)
    }
}
