//! Typed access to a GGUF file's fields, with errors that name the field.

use serde_json::{Map, Value};

use hooklens_model::error::ConfigError;

/// The fields of a file, those of its architecture by their last part.
pub(super) struct Fields<'f> {
    all: &'f Map<String, Value>,
    architecture: &'f str,
}

impl<'f> Fields<'f> {
    /// The fields of a file that names its architecture.
    pub(super) fn of(all: &'f Map<String, Value>) -> Result<Self, ConfigError> {
        match all.get("general.architecture").and_then(Value::as_str) {
            Some(architecture) => Ok(Self { all, architecture }),
            None => Err(malformed("the file names no `general.architecture`".into())),
        }
    }

    pub(super) fn architecture(&self) -> &'f str {
        self.architecture
    }

    /// A field of the architecture.
    fn get(&self, name: &str) -> Option<&'f Value> {
        self.all.get(&format!("{}.{name}", self.architecture))
    }

    /// An error about a field.
    fn wrong(&self, name: &str, value: &Value, wanted: &str) -> ConfigError {
        malformed(format!("`{}.{name}` is {value}, not {wanted}", self.architecture))
    }

    /// A whole number, if it is there; of a list that has one for each layer the one they share.
    pub(super) fn maybe_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let one = match value.as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => first,
            Some(_) => return Err(self.wrong(name, value, "the same in all layers")),
            None => value,
        };
        let size = one.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.wrong(name, value, "a whole number"))
    }

    /// A whole number.
    pub(super) fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.maybe_size(name)?.ok_or_else(|| malformed(format!("the file has no `{}.{name}`", self.architecture)))
    }

    /// A number, if it is there.
    pub(super) fn maybe_number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(name, value, "a finite number"))
    }

    /// A text, if it is there.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'f str>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "a text"))
    }

    /// A list of yes and no, if it is there.
    pub(super) fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let flags = value.as_array().map(|flags| flags.iter().map(Value::as_bool).collect::<Option<Vec<bool>>>());
        flags.flatten().map(Some).ok_or_else(|| self.wrong(name, value, "a list of true and false"))
    }

    /// Yes or no, if it is there.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, value, "true or false"))
    }
}

/// An error about a file's fields.
pub(super) fn malformed(reason: String) -> ConfigError {
    ConfigError::Malformed { reason }
}
