//! Weights that can't be processed.

use thiserror::Error;

use super::BoxError;

/// Weights that can't be processed as asked.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let told = model.processed(&Processing::none().fold_ln()).map(drop).unwrap_err();
/// assert_eq!(
///     told.to_string(),
///     "`fold_ln` can't be applied to this model: position vectors are added behind the norm, \
///      where its weights would reach them",
/// );
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessingError {
    /// A model of this kind has nothing to process.
    #[error("{kind} is not processed: its weights stay as published")]
    Kind {
        /// What the model is.
        kind: &'static str,
    },
    /// The model has parts in it, which were made for its weights as they are.
    #[error("a model with parts in it ({}) is not processed: process it first, then put them in", parts.join(", "))]
    Spliced {
        /// The parts and their points.
        parts: Vec<String>,
    },
    /// The step would change the model's outputs.
    #[error("`{step}` can't be applied to this model: {reason}")]
    WouldChangeOutputs {
        /// The step.
        step: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// What was trained on a residual stream with its mean reads one whose mean is taken away.
    #[error(
        "{reader} can't read this model: its stream is centered (`center_writing_weights`), and what was learned on the \
         stream as it is reads its mean, too; load the model without `--process` (`Processing::none()`, or steps that \
         leave the stream as it is)"
    )]
    Centered {
        /// What was trained.
        reader: &'static str,
    },
    /// Weights could not be read from their device.
    #[error("`{step}` can't read the weights of layer {layer} from their device")]
    Unreadable {
        /// The step.
        step: &'static str,
        /// The layer.
        layer: usize,
        /// What the device says.
        source: BoxError,
    },
    /// The factorization did not converge.
    #[error("`{step}` failed in layer {layer}, head {head}: {reason}")]
    Numeric {
        /// The step.
        step: &'static str,
        /// The layer.
        layer: usize,
        /// The head.
        head: usize,
        /// What went wrong.
        reason: String,
    },
}
