//! Typed access to a GGUF file's fields, with errors that name the field.

use serde_json::{Map, Value};

use hooklens_io::excerpt::excerpt;
use hooklens_model::error::ConfigError;

/// Metadata fields of a GGUF file. Accessors take the name of an architecture field without the architecture's prefix.
pub(super) struct Fields<'f> {
    all: &'f Map<String, Value>,
    architecture: &'f str,
}

impl<'f> Fields<'f> {
    /// Wraps a file's fields. Fails if they do not name the architecture.
    pub(super) fn of(all: &'f Map<String, Value>) -> Result<Self, ConfigError> {
        match all.get("general.architecture").and_then(Value::as_str) {
            Some(architecture) => Ok(Self { all, architecture }),
            None => Err(malformed("the file has no `general.architecture`".into())),
        }
    }

    pub(super) fn architecture(&self) -> &'f str {
        self.architecture
    }

    /// A field of the architecture.
    fn get(&self, name: &str) -> Option<&'f Value> {
        self.all.get(&format!("{}.{name}", self.architecture))
    }

    /// The error for an invalid field.
    fn wrong(&self, name: &str, value: &Value, wanted: &str) -> ConfigError {
        malformed(format!("`{}.{name}` is {}, not {wanted}", excerpt(self.architecture), excerpt(value)))
    }

    /// An optional integer. A list with one value per layer is accepted if all values are equal.
    pub(super) fn maybe_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let one = match value.as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => first,
            Some(_) => return Err(self.wrong(name, value, "one value for all layers")),
            None => value,
        };
        let size = one.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.wrong(name, value, "a non-negative integer"))
    }

    /// A required integer.
    pub(super) fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.maybe_size(name)?
            .ok_or_else(|| malformed(format!("the file has no `{}.{name}`", excerpt(self.architecture))))
    }

    /// An optional number.
    pub(super) fn maybe_number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(name, value, "a finite number"))
    }

    /// An optional string.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'f str>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "a string"))
    }

    /// An optional list of booleans.
    pub(super) fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let flags = value.as_array().map(|flags| flags.iter().map(Value::as_bool).collect::<Option<Vec<bool>>>());
        flags.flatten().map(Some).ok_or_else(|| self.wrong(name, value, "a list of booleans"))
    }

    /// An optional boolean.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, value, "true or false"))
    }
}

/// The error for invalid metadata.
pub(super) fn malformed(reason: String) -> ConfigError {
    ConfigError::Malformed { reason }
}
