//! Errors from loading and saving models.

use std::path::PathBuf;

use hooklens_io::numerals::bytes;
use thiserror::Error;

use super::BoxError;

/// Error from loading or saving a model.
///
/// ```
/// # use hooklens::FromPretrained;
/// use hooklens::{Error, HookedTransformer, LoadError};
/// let error = HookedTransformer::from_pretrained("embedded:gpt2").unwrap_err();
/// assert_eq!(error.to_string(), "no model at `embedded:gpt2`: embedded models are induction, ioi");
/// assert!(matches!(error, Error::Load(LoadError::NotFound { .. })));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("can't read {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Underlying I/O error.
        source: std::io::Error,
    },
    /// A file or folder could not be written.
    #[error("can't write {}", path.display())]
    Write {
        /// Path of the file or folder.
        path: PathBuf,
        /// Underlying I/O error.
        source: std::io::Error,
    },
    /// A file is not valid JSON.
    #[error("{} is not valid JSON", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Underlying parse error.
        source: serde_json::Error,
    },
    /// A file contains valid JSON with unexpected contents.
    #[error("{}: {reason}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no model with this name.
    #[error("no model at `{name}`: {reason}")]
    NotFound {
        /// The name given.
        name: String,
        /// What was tried, and what to do instead.
        reason: String,
        /// Underlying error from the hub or the network, if any.
        source: Option<BoxError>,
    },
    /// A weight file is corrupt or malicious.
    #[error("{} is not a valid weight file: {reason}", path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// Underlying error from the format's parser, if it found the problem.
        source: Option<BoxError>,
    },
    /// A shard named in the index is missing.
    #[error("shard `{shard}`, named by {}, is missing", index.display())]
    MissingShard {
        /// File name of the shard.
        shard: String,
        /// Path of the index.
        index: PathBuf,
    },
    /// A tensor that the architecture needs is missing from the files.
    #[error("the tensor `{name}` is missing{}", near(nearest))]
    MissingTensor {
        /// Name of the tensor.
        name: String,
        /// Most similar names in the files, best first.
        nearest: Vec<String>,
    },
    /// A tensor's shape does not match the configuration.
    #[error("the tensor `{name}` has shape {given:?}, but the configuration requires {expected:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape according to the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        given: Vec<usize>,
    },
    /// A tensor's element type is not supported for computation.
    #[error("the tensor `{name}` has element type {given}; expected f64, f32, f16 or bf16")]
    DType {
        /// Name of the tensor.
        name: String,
        /// Element type in the file.
        given: String,
    },
    /// The weights do not fit within the memory limit.
    #[error(
        "the memory limit of {} is too low: the program, the weights that must stay in memory, and two blocks of the \
         model need {}",
        bytes(*limit), bytes(*needed)
    )]
    Memory {
        /// The limit in bytes.
        limit: u64,
        /// Required memory in bytes.
        needed: u64,
    },
    /// The tensors of a quantized matrix are inconsistent.
    #[error("can't read the quantized tensor `{name}`: {reason}")]
    Quantized {
        /// Name of the matrix.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The configuration ties the unembedding to the embedding, but the files contain a different unembedding.
    #[error(
        "config.json ties the unembedding to the embedding, but the files contain a `{unembedding}` that differs from \
         `{embedding}`, and versions of transformers disagree on which to use; set `\"tie_word_embeddings\": false` \
         to use `{unembedding}`"
    )]
    NotTied {
        /// Name of the unembedding tensor.
        unembedding: String,
        /// Name of the embedding tensor.
        embedding: String,
    },
    /// The files contain one weight under two names, with different values.
    #[error(
        "`{one}` and `{other}` name the same weight in some versions of transformers, but their values differ; remove \
         one of them"
    )]
    Ambiguous {
        /// One tensor name.
        one: String,
        /// The other tensor name.
        other: String,
    },
    /// A reference for comparison cannot be used.
    #[error("can't use the reference {}: {reason}", path.display())]
    Reference {
        /// Path of the reference.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An adapter cannot be merged.
    #[error("can't merge the adapter {}: {reason}", path.display())]
    Adapter {
        /// Folder of the adapter.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tokenizer file cannot be used.
    #[error("{} is not a usable tokenizer", path.display())]
    Tokenizer {
        /// Path of the file.
        path: PathBuf,
        /// Underlying error from the `tokenizers` crate.
        source: BoxError,
    },
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; similar names in the files: {}", nearest.join(", ")) }
}
