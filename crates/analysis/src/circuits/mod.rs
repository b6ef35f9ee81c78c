//! QK and OV circuits (Elhage et al. 2021): what a head attends to and what it moves, computed from its weights.

mod composition;
#[cfg(feature = "decompositions")]
mod decompositions;
#[cfg(feature = "decompositions")]
mod directions;
mod factored_matrix;
mod of_model;

pub use crate::error::MatrixError;
pub use composition::Composition;
#[cfg(feature = "decompositions")]
pub use directions::{Directions, WeightMatrix};
pub use factored_matrix::FactoredMatrix;
pub use of_model::{Biases, Circuits};
