//! Functions that make a [`LoadError`], for the crates that read and write files.

use std::path::Path;

use super::{BoxError, LoadError};

/// Wraps an I/O error for a file that cannot be read.
pub fn cant_read(path: &Path) -> impl Fn(std::io::Error) -> LoadError {
    move |source| LoadError::File { path: path.to_path_buf(), source }
}

/// Wraps an I/O error for a file or folder that cannot be written.
pub fn cant_write(path: &Path) -> impl Fn(std::io::Error) -> LoadError {
    move |source| LoadError::Write { path: path.to_path_buf(), source }
}

/// The error for a name that no model has, without an underlying error.
pub fn not_found(name: impl Into<String>, reason: impl Into<String>) -> LoadError {
    LoadError::NotFound { name: name.into(), reason: reason.into(), source: None }
}

/// The error for inconsistent tensors of a quantized matrix.
pub fn bad_quantized(name: &str, reason: impl Into<String>) -> LoadError {
    LoadError::Quantized { name: name.to_string(), reason: reason.into() }
}

/// The error for a corrupt weight file, without an underlying error.
pub fn corrupt(path: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::Corrupt { path: path.to_path_buf(), reason: reason.into(), source: None }
}

/// The error for a weight file that the format's parser rejects.
pub fn rejected(path: &Path, reason: &str, source: impl Into<BoxError>) -> LoadError {
    LoadError::Corrupt { path: path.to_path_buf(), reason: reason.into(), source: Some(source.into()) }
}
