//! Representations of values in Jupyter.

use std::collections::HashMap;

use hooklens::plot::Show;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Representations by MIME type, for `_repr_mimebundle_`.
pub(crate) type Bundle = HashMap<&'static str, String>;

/// Converts the library's representations.
pub(crate) fn bundle(value: &impl Show) -> PyResult<Bundle> {
    let shown = value.shown().map_err(|error| PyValueError::new_err(hooklens::error_chain(&error)))?;
    Ok(shown.into_iter().map(|one| (one.mime, one.content)).collect())
}
