//! Attribution patching (Nanda 2023): the first-order estimate of every patch, from two forward passes and one
//! backward.

mod edges;
mod nodes;
mod norm_gradient;

pub use edges::{EdgeScores, Gradient, Reads, Writes};
pub use nodes::Attribution;
