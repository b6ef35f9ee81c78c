//! What can go wrong with attribution graphs.

use std::path::PathBuf;

use hooklens_hooks::FolderLockError;
use thiserror::Error;

/// An attribution graph that can't be made, read or written.
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let told = AttributionGraph::new(&model, "", &replacement, &GraphOptions::new()).unwrap_err().to_string();
/// assert_eq!(told, "the text \"\" is empty; there is nothing to run on");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A replacement that does not fit the model.
    #[error("{what} can't stand for a part of the model: {reason}")]
    Replacement {
        /// The dictionary, or the neurons.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A target that is none.
    #[error("no target: {reason}")]
    Target {
        /// What is wrong.
        reason: String,
    },
    /// A setting that makes no sense.
    #[error("{what} is {given}, and must be {wanted}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What was given.
        given: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// A node that a graph lacks.
    #[error("the graph has no node {node}; nearest: {}", near.join(", "))]
    Node {
        /// The node.
        node: String,
        /// Those like it.
        near: Vec<String>,
    },
    /// A file that is no graph.
    #[error("{}: no attribution graph: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A folder whose rows are of no use for a graph.
    #[error("{}: can't go on from here: {reason}", folder.display())]
    Kept {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A folder of rows that another process writes to.
    #[error(transparent)]
    Locked(#[from] FolderLockError),
    /// A file that can't be read or written.
    #[error("{}: can't {doing}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was done.
        doing: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}
