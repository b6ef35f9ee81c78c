//! Models and dictionaries embedded in the binary.

mod dictionaries;

use hooklens_model::error::{LoadError, load_errors};

pub use dictionaries::{EmbeddedDictionary, embedded_dictionaries, find_dictionary};

/// An embedded model: configuration, weights and tokenizer.
pub(crate) struct EmbeddedModel {
    name: &'static str,
    pub(crate) config: &'static str,
    pub(crate) weights: &'static [u8],
    pub(crate) tokenizer: &'static str,
}

macro_rules! embedded {
    ($name:literal) => {
        EmbeddedModel {
            name: $name,
            config: include_str!(concat!($name, "/config.json")),
            weights: include_bytes!(concat!($name, "/model.safetensors")),
            tokenizer: include_str!(concat!($name, "/tokenizer.json")),
        }
    };
}

static MODELS: &[EmbeddedModel] = &[embedded!("induction"), embedded!("ioi")];

/// Names of the embedded models, which can be loaded as `embedded:NAME`.
///
/// ```
/// # use hooklens::FromPretrained;
/// for name in hooklens::embedded_models() {
///     hooklens::HookedTransformer::from_pretrained(format!("embedded:{name}"))?;
/// }
/// assert!(hooklens::embedded_models().any(|name| name == "induction"));
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn embedded_models() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|model| model.name)
}

pub(crate) fn find(name: &str) -> Result<&'static EmbeddedModel, LoadError> {
    MODELS.iter().find(|model| model.name == name).ok_or_else(|| {
        let reason =
            format!("embedded models are {}", MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", "));
        load_errors::not_found(format!("embedded:{name}"), reason)
    })
}
