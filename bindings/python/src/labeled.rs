//! Arrays with named axes.

use hooklens::LabeledArray;
use numpy::{PyArray, PyArrayDyn};
use pyo3::prelude::*;

use crate::error::raise;
use crate::show::{Bundle, bundle};

/// Numbers with named axes and labels.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Labeled {
    pub(crate) array: LabeledArray,
}

impl Labeled {
    pub(crate) fn new(array: LabeledArray) -> Self {
        Self { array }
    }
}

#[pymethods]
impl Labeled {
    /// Names of the axes, and the label of each index.
    #[getter]
    fn axes(&self) -> Vec<(String, Vec<String>)> {
        self.array.axes().iter().map(|axis| (axis.name.clone(), axis.labels.clone())).collect()
    }

    /// The values as a new NumPy array of `float64`.
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDyn<f64>> {
        PyArray::from_owned_array(py, self.array.values().clone())
    }

    /// The mean over an axis.
    fn mean(&self, py: Python<'_>, axis: &str) -> PyResult<Self> {
        self.array.mean(axis).map(Self::new).map_err(|error| raise(py, error))
    }

    /// The values at one index of an axis.
    fn at(&self, py: Python<'_>, axis: &str, index: isize) -> PyResult<Self> {
        self.array.at(axis, index).map(Self::new).map_err(|error| raise(py, error))
    }

    /// One row per value, with the labels as columns.
    fn to_csv(&self) -> String {
        self.array.to_csv()
    }

    fn mimebundle(&self) -> PyResult<Bundle> {
        bundle(&self.array)
    }
}
