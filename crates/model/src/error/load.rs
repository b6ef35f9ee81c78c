//! A model's files that can't be loaded.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::BoxError;

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
    #[error("can't read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file or folder could not be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that should hold JSON does not.
    #[error("{} is not sound JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it stops being JSON.
        source: serde_json::Error,
    },
    /// A file holds sound JSON of another kind than it should.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No model goes by this name.
    #[error("no model at `{name}`: {reason}")]
    NotFound {
        /// The name given.
        name: String,
        /// What was tried, and what to do instead.
        reason: String,
        /// What the hub or the way there reported, if that is the reason.
        source: Option<BoxError>,
    },
    /// A weights file is damaged or hostile.
    #[error("{}: not a sound file of weights: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What the reader of the format reported, if it found the fault.
        source: Option<BoxError>,
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
    /// Weights can't be held under a limit of memory.
    #[error(
        "the weights can't be held under {} of memory: the program, what has to stay there, and two blocks of the model take {}",
        size(*limit), size(*needed)
    )]
    Memory {
        /// The limit, in bytes.
        limit: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The tensors that make a quantized matrix do not fit together.
    #[error("the quantized tensor `{name}`: {reason}")]
    Quantized {
        /// The matrix.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The unembedding is to be the embedding, and the files hold another.
    #[error(
        "config.json ties the unembedding to the embedding, and the files hold a `{unembedding}` that is not `{embedding}`: \
         versions of transformers differ in which they take. With `\"tie_word_embeddings\": false` it is `{unembedding}`"
    )]
    NotTied {
        /// The files' unembedding.
        unembedding: String,
        /// The embedding.
        embedding: String,
    },
    /// The files hold a weight under two names, and the two differ.
    #[error("`{one}` and `{other}` are one weight to some versions of transformers, and they differ: take one out")]
    Ambiguous {
        /// A tensor.
        one: String,
        /// The other.
        other: String,
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
    #[error("{}: not a usable tokenizer", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What the `tokenizers` crate reported.
        source: BoxError,
    },
}

impl LoadError {
    /// For a file that the system does not let us read.
    pub fn file(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| LoadError::File { path: path.to_path_buf(), source }
    }

    /// For a file or folder that the system does not let us write.
    pub fn write(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| LoadError::Write { path: path.to_path_buf(), source }
    }

    /// No model by this name, for a reason of our own.
    pub fn not_found(name: impl Into<String>, reason: impl Into<String>) -> Self {
        LoadError::NotFound { name: name.into(), reason: reason.into(), source: None }
    }

    /// Tensors of a quantized matrix that do not fit together.
    pub fn quantized(name: &str, reason: impl Into<String>) -> Self {
        LoadError::Quantized { name: name.to_string(), reason: reason.into() }
    }

    /// A file of weights in which we found a fault.
    pub fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        LoadError::Corrupt { path: path.to_path_buf(), reason: reason.into(), source: None }
    }

    /// A file of weights that its format's reader refuses.
    pub fn refused(path: &Path, reason: &str, source: impl Into<BoxError>) -> Self {
        LoadError::Corrupt { path: path.to_path_buf(), reason: reason.into(), source: Some(source.into()) }
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; the files hold {}", nearest.join(", ")) }
}
