//! QK and OV circuits (Elhage et al. 2021): what a head attends to and what information it moves, computed from its
//! weights.
//!
//! [`HookedTransformer::qk`](crate::HookedTransformer::qk) and [`ov`](crate::HookedTransformer::ov) are products of two
//! thin matrices, stored as a [`FactoredMatrix`] that is multiplied, decomposed and compared without materializing a
//! `d_model` by `d_model` matrix.
//!
//! ```
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! // Which heads of the second layer use the output of first-layer heads in their keys (K-composition)?
//! let scores = model.composition_scores(hooklens::circuits::Composition::K)?;
//! println!("{:?}", scores.largest(1));
//! // Positive eigenvalues of the OV circuit mean that the head copies what it attends to.
//! let ov = model.ov().at(1, 0)?;
//! println!("{:.2}", ov.copying()?[0]);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::circuits::{
    AdversarialAblation, Adversary, Biases, Circuit, CircuitError, CircuitRuns, Circuits, Completeness, Composition,
    Discovery, FactoredMatrix, FaithfulnessCurve, LearnedMasks, MIB_SHARES, MatrixError, MissedEffect, NodeCircuit,
    Selection, Stability,
};
#[cfg(feature = "decompositions")]
pub use hooklens_analysis::circuits::{Directions, WeightMatrix};
