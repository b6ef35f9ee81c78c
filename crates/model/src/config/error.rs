//! Configuration errors.

use thiserror::Error;

/// An invalid or unsupported configuration.
///
/// ```
/// use hooklens::TransformerConfig;
/// let config = TransformerConfig::new(0, 64, 4, 100, 32);
/// let message = config.validate().unwrap_err().to_string();
/// assert_eq!(message, "`n_layers` is 0; it must be at least 1");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size is too small or too large.
    #[error(
        "`{field}` is {given}{}",
        match given {
            0 => "; it must be at least 1",
            1..4 => ", which is too small",
            _ => ", which is too large",
        }
    )]
    BadSize {
        /// The field.
        field: &'static str,
        /// Its value.
        given: usize,
    },
    /// A field has an invalid value, or its value contradicts another field.
    #[error("invalid `{field}`: {reason}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// The reason.
        reason: String,
    },
    /// A field has an unknown value.
    #[error("`{field}` is `{given}`; known values are {known}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// The known values.
        known: &'static str,
    },
    /// No supported family has this architecture.
    #[error("the architecture `{given}` is not supported; supported architectures are {}", supported.join(", "))]
    UnknownArchitecture {
        /// The architecture.
        given: String,
        /// The supported architectures.
        supported: Vec<&'static str>,
    },
    /// No supported family has this architecture, and the model can't be loaded as Llama, because its settings or
    /// tensors differ from Llama's.
    #[error(
        "the architecture `{given}` is not supported, and it can't be loaded as Llama, because its files differ from \
         Llama's:{}",
        unaccounted(missing, unused, fields)
    )]
    NotLlama {
        /// The architecture.
        given: String,
        /// Llama tensors missing from the files.
        missing: Vec<String>,
        /// Tensors in the files that Llama does not have.
        unused: Vec<String>,
        /// Settings that Llama does not have, with their values.
        fields: Vec<String>,
    },
    /// The model is of a different kind than the type used to load it.
    #[error("a {family} model is {kind}: load it with `{load}::from_pretrained`")]
    OtherKind {
        /// The family.
        family: &'static str,
        /// The kind of model.
        kind: &'static str,
        /// The type to load it with.
        load: &'static str,
    },
    /// The weights use an unsupported quantization.
    #[error(
        "the weights of this {architecture} model are quantized with an unsupported method ({method}); supported \
         methods are gptq and awq with 4 or 8 bits, bitsandbytes, fp8, compressed-tensors, mxfp4 and GGUF files. To \
         use this model, load and dequantize it with transformers and save it in bf16"
    )]
    Quantized {
        /// The architecture.
        architecture: String,
        /// The quantization method.
        method: String,
    },
    /// The family is supported, but not this variant of it.
    #[error("`{field}` = {given} is a variant of {family} that is not supported")]
    UnsupportedVariant {
        /// The family.
        family: &'static str,
        /// The field that selects the variant.
        field: &'static str,
        /// Its value.
        given: String,
    },
    /// A field has the wrong type or structure.
    #[error("`{field}` can't be read")]
    Field {
        /// The field.
        field: &'static str,
        /// The parse error.
        source: serde_json::Error,
    },
    /// The configuration can't be written as JSON.
    #[error("the configuration can't be written as JSON")]
    Unwritable {
        /// The serialization error.
        source: serde_json::Error,
    },
    /// The file is not a configuration.
    #[error("not a model configuration: {reason}")]
    Malformed {
        /// The reason.
        reason: String,
    },
}

impl ConfigError {
    /// Returns [`ConfigError::Contradiction`] for this field.
    pub(super) fn refuse<T>(field: &'static str, reason: String) -> Result<T, Self> {
        Err(Self::Contradiction { field, reason })
    }
}

fn unaccounted(missing: &[String], unused: &[String], fields: &[String]) -> String {
    let kinds = [("missing tensors:", missing), ("unexpected tensors:", unused), ("unexpected settings:", fields)];
    let kinds = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    kinds.map(|(what, names)| format!("\n  {what} {}", names.join(", "))).collect()
}
