//! Gradients of a metric whose computation may fail.

use burn::tensor::Tensor;

use super::model::Patchable;
use hooklens_model::driver::ForwardOptions;
use hooklens_model::error::{InputError, Result};

/// Runs a model and differentiates the sum of a metric, which is computed from the logits. Returns the output with the
/// gradients at the recorded points, and the metric.
pub(super) fn differentiated<M: Patchable>(
    model: &M,
    input: M::Input,
    options: ForwardOptions<'_>,
    metric: impl FnOnce(M::Scored) -> Result<Tensor<1>>,
) -> Result<(M::Output, Tensor<1>)> {
    let mut judged = None;
    let device = model.devices().first().cloned().unwrap_or_default();
    let output = model.run_with_gradients(input, options, |scored| {
        let made = metric(scored);
        // If the metric fails, its error is returned below and this value is not used.
        let number = made.as_ref().ok().cloned().unwrap_or_else(|| Tensor::zeros([1], &device));
        judged = Some(made);
        number
    });
    if let Some(Err(_)) = &judged {
        judged.take().transpose()?;
    }
    Ok((output?, judged.ok_or(InputError::NoOutput { what: "logits" })??))
}
