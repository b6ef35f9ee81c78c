//! Errors of attribution graphs.

use std::path::PathBuf;

use hooklens_hooks::FolderLockError;
use thiserror::Error;

/// An attribution graph that cannot be computed, read or written.
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let message = AttributionGraph::new(&model, "", &replacement, &GraphOptions::new()).unwrap_err().to_string();
/// assert_eq!(message, "the text \"\" is empty; there is nothing to run on");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A replacement does not fit the model.
    #[error("cannot use {what} in an attribution graph: {reason}")]
    Replacement {
        /// The dictionary or neurons.
        what: String,
        /// Why the replacement does not fit.
        reason: String,
    },
    /// A target is invalid.
    #[error("invalid target: {reason}")]
    Target {
        /// Why the target is invalid.
        reason: String,
    },
    /// A setting is invalid.
    #[error("{what} is {given}; expected {wanted}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Value given.
        given: String,
        /// Allowed values.
        wanted: &'static str,
    },
    /// A node does not exist, or cannot be used for the operation.
    #[error("node {node} cannot be used here; expected {}", near.join(", "))]
    Node {
        /// The requested node.
        node: String,
        /// Nodes that can be used.
        near: Vec<String>,
    },
    /// A file is not a graph.
    #[error("{}: not a valid attribution graph: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file is not a valid graph.
        reason: String,
    },
    /// A folder of stored rows cannot be used for this graph.
    #[error("{}: cannot resume from this folder: {reason}", folder.display())]
    Kept {
        /// Path of the folder.
        folder: PathBuf,
        /// Why the rows cannot be used.
        reason: String,
    },
    /// Another process is writing to the folder of rows.
    #[error(transparent)]
    Locked(#[from] FolderLockError),
    /// A file cannot be read or written.
    #[error("{}: can't {doing}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Underlying I/O error.
        source: std::io::Error,
    },
}
