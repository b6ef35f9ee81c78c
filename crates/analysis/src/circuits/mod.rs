//! Circuits: parts of a model that do a task, discovered and proven; and QK and OV circuits (Elhage et al. 2021): what
//! a head attends to and what information it moves, computed from its weights.

mod circuit;
mod circuit_json;
mod composition;
#[cfg(feature = "decompositions")]
mod decompositions;
#[cfg(feature = "decompositions")]
mod directions;
mod discovery;
mod edge_names;
mod edge_run;
mod factored_matrix;
mod nodes;
mod of_model;
mod proof;

pub use crate::error::{CircuitError, MatrixError};
pub use circuit::{Circuit, check_scored};
pub use composition::Composition;
#[cfg(feature = "decompositions")]
pub use directions::{Directions, WeightMatrix};
pub use discovery::{Discovery, LearnedMasks};
pub use factored_matrix::FactoredMatrix;
pub use nodes::{KindOfNodes, MissedEffect, NodeCircuit};
pub use of_model::{Biases, Circuits};
pub use proof::{
    AdversarialAblation, Adversary, CircuitRuns, Completeness, FaithfulnessCurve, MIB_SHARES, Selection, Stability,
    best_edges,
};
