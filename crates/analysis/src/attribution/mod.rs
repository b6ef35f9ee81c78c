//! Attribution patching (Nanda 2023): a first-order estimate of the effect of every patch, from two forward passes and
//! one backward pass.

mod edge_graph;
mod edges;
mod nodes;
mod norm_gradient;
mod queries_and_keys;

pub use edge_graph::EdgeGraph;
pub use edges::{EdgeScores, Gradient, Sender};
pub use nodes::Attribution;
