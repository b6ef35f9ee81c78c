//! Recorded activations.

use hooklens::ActivationCache;
use pyo3::prelude::*;

use crate::array::Array;
use crate::enter::enter;
use crate::error::raise;
use crate::show::{Bundle, bundle};

/// A recording of one run.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Cache {
    pub(crate) cache: ActivationCache,
}

#[pymethods]
impl Cache {
    /// Names of the recorded hook points, in firing order; then the names of gradients, with `_grad` appended, in the
    /// order of the backward pass.
    fn names(&self) -> Vec<String> {
        let mut gradients: Vec<String> = self.cache.gradients().map(|(name, _)| format!("{name}_grad")).collect();
        gradients.reverse();
        self.cache.names().map(str::to_string).chain(gradients).collect()
    }

    /// The activation with this name, without a copy.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        let activation = self.cache.activation(name).map_err(|error| raise(py, error))?;
        Array::shared(activation).map_err(|error| raise(py, error))
    }

    /// Whether the activations have a batch axis.
    #[getter]
    fn has_batch_dim(&self) -> bool {
        self.cache.has_batch_dim()
    }

    /// The recording of one row without its batch axis.
    fn remove_batch_dim(&self, py: Python<'_>) -> PyResult<Self> {
        let cache = self.cache.clone().remove_batch_dim().map_err(|error| raise(py, error))?;
        Ok(Self { cache })
    }

    /// Writes a `.safetensors` or `.npz` file.
    fn save(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        enter(py, || Ok(self.cache.save(&path)?))
    }

    fn mimebundle(&self) -> PyResult<Bundle> {
        bundle(&self.cache)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.cache)
    }
}
