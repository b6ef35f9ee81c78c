//! Runs with gradients of a Python metric.

use burn::tensor::Tensor;
use hooklens::{ForwardOptions, HookedModel, Input, lm_cross_entropy_loss};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::array::Array;
use crate::enter::{end_run, enter};
use crate::error::to_python;
use crate::hooks::{PythonHook, hooks_of};
use crate::input::tokens_of;
use crate::model::Model;
use crate::run::{Plain, Recorded, RunOutput};

#[pymethods]
impl Model {
    /// Runs the model, then its backward pass from the gradient of a metric. `gradient` is called with the logits,
    /// `[batch, pos, d_vocab]`, and returns the metric's gradient with respect to them, an array of the same shape.
    /// Without `gradient`, the metric is the mean loss, which is returned too.
    #[pyo3(signature = (input, *, mask=None, hooks=vec![], record=None, gradient=None))]
    #[allow(clippy::too_many_arguments)]
    fn run_with_gradients(
        &self,
        py: Python<'_>,
        input: Vec<Vec<u32>>,
        mask: Option<Vec<Vec<bool>>>,
        hooks: Vec<PythonHook>,
        record: Option<Recorded>,
        gradient: Option<Py<PyAny>>,
    ) -> PyResult<RunOutput> {
        let model = self.shared();
        let made = enter(py, || {
            let mut options = ForwardOptions::new().hooks(hooks_of(hooks, model.catalog(), true)?);
            if let Some(record) = record {
                options = options.record(record.record());
            }
            if gradient.is_none() {
                options = options.loss();
            }
            let tokens = tokens_of(input, mask)?;
            let made = model.run_with_gradients(Input::from(tokens.clone()), options, |logits| {
                let scalar = match &gradient {
                    Some(gradient) => weighted(gradient, &logits),
                    None => lm_cross_entropy_loss(&logits, &tokens),
                };
                scalar.unwrap_or_else(|error| end_run(Python::attach(|py| to_python(py, &error))))
            });
            Plain::read(made?)
        })?;
        made.into_python(py)
    }
}

/// A scalar whose gradient with respect to the logits is the one that `gradient` returns.
fn weighted(gradient: &Py<PyAny>, logits: &Tensor<3>) -> hooklens::Result<Tensor<1>> {
    let array = Array::shared(&logits.clone().into())?;
    let weights = Python::attach(|py| {
        let returned = gradient.call1(py, (array,))?;
        match returned.bind(py).cast::<Array>() {
            Ok(array) => Ok(array.get().activation()),
            Err(_) => Err(PyTypeError::new_err("the gradient of a metric must be an array")),
        }
    });
    let weights = weights.map_err(|raised| hooklens::Error::Other(raised.into()))?;
    let weights = weights.to_device(&logits.device()).to_tensor::<3>()?;
    Ok((logits.clone() * like(weights, logits)?).sum())
}

/// A gradient with respect to the logits, in their element type.
pub(crate) fn like(gradient: Tensor<3>, logits: &Tensor<3>) -> hooklens::Result<Tensor<3>> {
    let (given, expected) = (gradient.dims(), logits.dims());
    if given != expected {
        let message = format!("the gradient of the metric has shape {given:?}; the logits have shape {expected:?}");
        return Err(hooklens::Error::Other(message.into()));
    }
    Ok(gradient.cast(logits.dtype()))
}
