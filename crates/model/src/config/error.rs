//! A configuration that can't be built.

use thiserror::Error;

/// A configuration that can't be built.
///
/// ```
/// use hooklens::TransformerConfig;
/// let config = TransformerConfig { n_layers: 0, ..TransformerConfig::new(2, 64, 4, 100, 32) };
/// let told = config.validate().unwrap_err().to_string();
/// assert_eq!(told, "`n_layers` is 0; it must be at least 1 and of a size a model can have");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size is zero or absurdly large.
    #[error("`{field}` is {given}; it must be at least 1 and of a size a model can have")]
    BadSize {
        /// The field.
        field: &'static str,
        /// Its value.
        given: usize,
    },
    /// Two fields do not fit each other.
    #[error("`{field}` does not fit: {reason}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// What it does not fit.
        reason: String,
    },
    /// A field's value is not one hooklens knows.
    #[error("`{field}` is `{given}`; known are {known}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// The values known.
        known: &'static str,
    },
    /// The file names an architecture no family covers.
    #[error("the architecture `{given}` is not supported; supported are {}", supported.join(", "))]
    UnknownArchitecture {
        /// The architecture.
        given: String,
        /// Those supported.
        supported: Vec<&'static str>,
    },
    /// An architecture no family covers, with Llama's settings but not only those, or not Llama's tensors.
    #[error(
        "the architecture `{given}` is not supported, and it is not Llama under another name:{}",
        unaccounted(missing, unused, fields)
    )]
    NotLlama {
        /// The architecture.
        given: String,
        /// Tensors that Llama has and the files lack.
        missing: Vec<String>,
        /// Tensors of the files that Llama lacks.
        unused: Vec<String>,
        /// Settings that Llama lacks, with their values.
        fields: Vec<String>,
    },
    /// The model is of another kind than the type that was to load it.
    #[error("a {family} model is {kind}: load it with `{load}::from_pretrained`")]
    OtherKind {
        /// The family.
        family: &'static str,
        /// What its models are.
        kind: &'static str,
        /// The type that loads them.
        load: &'static str,
    },
    /// The weights are kept in few bits.
    #[error(
        "the weights of this {architecture} are quantized ({method}); read are gptq and awq of 4 and 8 bits, bitsandbytes, \
         fp8, compressed-tensors, mxfp4 and GGUF files: load it with transformers, dequantized, and save it in bf16"
    )]
    Quantized {
        /// The architecture.
        architecture: String,
        /// How they are quantized.
        method: String,
    },
    /// The family is known, but not this variant of it.
    #[error("`{field}` = {given} is a variant of {family} that is not supported")]
    UnsupportedVariant {
        /// The family.
        family: &'static str,
        /// The field that asks for the variant.
        field: &'static str,
        /// Its value.
        given: String,
    },
    /// A field holds something else than it should.
    #[error("`{field}` can't be read")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A configuration that can't be written as JSON.
    #[error("the configuration can't be written as JSON")]
    Unwritable {
        /// What is in the way.
        source: serde_json::Error,
    },
    /// The file is not a configuration.
    #[error("not a model configuration: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
}

fn unaccounted(missing: &[String], unused: &[String], fields: &[String]) -> String {
    let kinds = [("it lacks", missing), ("it has besides", unused), ("it sets", fields)];
    let kinds = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    kinds.map(|(what, names)| format!("\n  {what} {}", names.join(", "))).collect()
}
