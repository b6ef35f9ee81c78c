//! Errors from accessing weights by name.

use thiserror::Error;

/// Error from accessing a weight: an unknown name, a wrong rank or a wrong shape.
///
/// ```
/// use hooklens::WeightError;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let error = model.weights().get::<2>("blocks.0.mlp.W_inn").unwrap_err();
/// let Some(WeightError::Unknown { nearest, .. }) = error.downcast_ref() else { panic!("{error}") };
/// assert_eq!(nearest[0], "blocks.0.mlp.W_in");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// No weight has this name.
    #[error("no weight is called `{name}` in this model of {count} weights{}", did_you_mean(nearest))]
    Unknown {
        /// The requested name.
        name: String,
        /// Number of weights in the model.
        count: usize,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// A pattern matches no weight.
    #[error("the pattern `{pattern}` matches no weight of this model{}", did_you_mean(nearest))]
    NoMatch {
        /// The requested pattern.
        pattern: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// No stacked weight has this name.
    #[error("no stacked weight is called `{name}`; the stacked weights are {}", names.join(", "))]
    NotStacked {
        /// The requested name.
        name: String,
        /// Names of all stacked weights.
        names: &'static [&'static str],
    },
    /// Not every layer has this weight.
    #[error("not every layer has `{name}`; `weights().get(..)` reads the weights of one layer")]
    NotInAll {
        /// The requested name.
        name: String,
    },
    /// A weight was requested with the wrong rank.
    #[error("the weight `{name}` has rank {rank}, not {asked}")]
    Rank {
        /// Name of the weight.
        name: String,
        /// Rank of the weight.
        rank: usize,
        /// The requested rank.
        asked: usize,
    },
    /// A weight cannot be replaced by a tensor of a different shape.
    #[error("the weight `{name}` has shape {expected:?}, and can't be replaced by a tensor of shape {given:?}")]
    Shape {
        /// Name of the weight.
        name: String,
        /// Shape of the given tensor.
        given: Vec<usize>,
        /// Shape of the weight.
        expected: Vec<usize>,
    },
}

/// `; did you mean ...?`, or nothing without suggestions.
fn did_you_mean(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean `{}`?", nearest.join("`, `")) }
}
