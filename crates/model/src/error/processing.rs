//! Errors from weight processing.

use thiserror::Error;

use super::BoxError;

/// Error from processing a model's weights.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let message = model.processed(&Processing::none().fold_ln()).map(drop).unwrap_err();
/// assert_eq!(
///     message.to_string(),
///     "`fold_ln` can't be applied to this model: position vectors are added after the norm, \
///      so folding its weights would change them",
/// );
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessingError {
    /// This kind of model does not support processing.
    #[error("{kind} does not support weight processing")]
    Kind {
        /// Kind of model.
        kind: &'static str,
    },
    /// The model has spliced parts, which were made for its current weights.
    #[error(
        "can't process a model with spliced parts ({}); process the model first, then splice them in",
        parts.join(", ")
    )]
    Spliced {
        /// The parts and their hook points.
        parts: Vec<String>,
    },
    /// The step would change the model's outputs.
    #[error("`{step}` can't be applied to this model: {reason}")]
    WouldChangeOutputs {
        /// Name of the step.
        step: &'static str,
        /// Why the step would change the outputs.
        reason: &'static str,
    },
    /// A lens or probe trained on an uncentered residual stream is used with a model whose stream is centered.
    #[error(
        "{reader} can't be used with this model: it was trained on an uncentered residual stream, but this model's \
         stream is centered (`center_writing_weights`); load the model without `--process` (`Processing::none()`, or \
         only steps that do not change the stream)"
    )]
    Centered {
        /// What was trained, such as a tuned lens.
        reader: &'static str,
    },
    /// Weights cannot be read from their device.
    #[error("`{step}` can't read the weights of layer {layer} from their device")]
    Unreadable {
        /// Name of the step.
        step: &'static str,
        /// Index of the layer.
        layer: usize,
        /// The device's error.
        source: BoxError,
    },
    /// The factorization did not converge.
    #[error("`{step}` failed in layer {layer}, head {head}: {reason}")]
    Numeric {
        /// Name of the step.
        step: &'static str,
        /// Index of the layer.
        layer: usize,
        /// Index of the head.
        head: usize,
        /// What went wrong.
        reason: String,
    },
}
