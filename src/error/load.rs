//! A model's files that can't be loaded.

use std::path::PathBuf;

use thiserror::Error;

/// A model that can't be loaded.
///
/// ```
/// use hooklens::{Error, HookedTransformer, LoadError};
/// let error = HookedTransformer::from_pretrained("embedded:gpt2").unwrap_err();
/// assert_eq!(error.to_string(), "no model at `embedded:gpt2`: embedded models are induction, ioi");
/// assert!(matches!(error, Error::Load(LoadError::NotFound { .. })));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// No model goes by this name.
    #[error("no model at `{name}`: {reason}")]
    NotFound {
        /// The name given.
        name: String,
        /// What was tried, and what to do instead.
        reason: String,
    },
    /// A weights file is damaged or hostile.
    #[error("{}: not a sound file of weights: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A shard the index names is not there.
    #[error("shard `{shard}`, named by {}, is missing", index.display())]
    MissingShard {
        /// The shard's file name.
        shard: String,
        /// The index that names it.
        index: PathBuf,
    },
    /// A tensor the architecture needs is not in the files.
    #[error("the tensor `{name}` is missing{}", near(nearest))]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Nearest names in the files, best first.
        nearest: Vec<String>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("the tensor `{name}` has shape {given:?}, but the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        given: Vec<usize>,
    },
    /// A tensor's element type can't be computed with.
    #[error("the tensor `{name}` holds {given}; weights are f64, f32, f16 or bf16")]
    DType {
        /// The tensor.
        name: String,
        /// Its element type.
        given: String,
    },
    /// A reference to compare with can't be used.
    #[error("the reference {}: {reason}", path.display())]
    Reference {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An adapter can't be merged.
    #[error("the adapter {}: {reason}", path.display())]
    Adapter {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer file can't be used.
    #[error("{}: not a usable tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; the files hold {}", nearest.join(", ")) }
}
