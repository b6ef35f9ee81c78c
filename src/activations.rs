//! Decomposition of the residual stream into the components that wrote to it, and direct logit attribution.
//!
//! [`HookedTransformer::analyze`](crate::HookedTransformer::analyze) pairs a model with a recording. The residual
//! stream at a [`Stage`] is then decomposed into [`Components`], which sum to the stream in every architecture and can
//! be projected through the unembedding without being materialized.
//!
//! ```
//! use hooklens::prelude::*;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompt = "When Mary and John went to the store, John gave a drink to";
//! let cache = model.record(prompt, Record::all())?;
//! let analysis = model.analyze(&cache)?.positions(-1)?;
//! let heads = analysis.stack_head_results(Stage::Final)?;
//! let towards_mary = analysis.logit_attrs(&heads, Direction::token("Mary").minus("John"))?; // [head, 1, 1]
//! let best = towards_mary.argmax(0).item()?;
//! println!("{} says Mary", heads.labels()[best as usize]);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::activations::{
    Analysis, AnalysisError, Analyze, Components, Direction, Neurons, Per, Stage,
};
