//! QK and OV circuits (Elhage et al. 2021): what a head attends to and moves, read from its weights.
//!
//! [`HookedTransformer::qk`](crate::HookedTransformer::qk) and
//! [`ov`](crate::HookedTransformer::ov) are products of two thin matrices, kept as such: a
//! [`FactoredMatrix`] is multiplied, decomposed and compared without ever being `d_model` squared.
//!
//! ```
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! // Which heads of the second layer look for what heads of the first have moved (K-composition)?
//! let scores = model.composition_scores(hooklens::circuits::Composition::K)?;
//! println!("{:?}", scores.largest(1));
//! // Does a head copy what it looks at? Then its eigenvalues are positive.
//! let ov = model.ov().at(1, 0)?;
//! println!("{:.2}", ov.eigenvalues()?.copying()[0]);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::circuits::{Biases, Circuits, Composition, FactoredMatrix, MatrixError};
#[cfg(feature = "decompositions")]
pub use hooklens_analysis::circuits::{Directions, Eigenvalues, Svd, WeightMatrix};
