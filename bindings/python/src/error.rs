//! Python exceptions for the library's errors.

use std::error::Error as StdError;
use std::io;

use hooklens::{Error, HookError, InputError, LoadError, WeightError, error_chain};
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyKeyError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

/// Converts an error to a Python exception. If an exception in a Python function caused the error, returns that
/// exception; otherwise, returns a new one with the error's message and the messages of its sources.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    // A transparent wrapper returns the source of the error that it wraps, so the wrapped error itself is checked too.
    let wrapped = error.downcast_ref::<PyErr>();
    if let Some(raised) = wrapped.or_else(|| sources(error).find_map(|cause| cause.downcast_ref())) {
        return raised.clone_ref(py);
    }
    let message = error_chain(error);
    if let Some(missing) = error.downcast_ref::<LoadError>().and_then(io_error) {
        return match missing {
            io::ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            _ => PyOSError::new_err(message),
        };
    }
    match error {
        Error::OutOfMemory { .. } => PyMemoryError::new_err(message),
        Error::Hook(HookError::UnknownPoint { .. } | HookError::NoMatch { .. } | HookError::NotRecorded { .. })
        | Error::Weight(WeightError::Unknown { .. } | WeightError::NoMatch { .. }) => PyKeyError::new_err(message),
        Error::Input(InputError::Layer { .. }) => PyIndexError::new_err(message),
        Error::DeviceFailed { .. } | Error::Run { .. } => PyRuntimeError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}

/// Converts an error type that the library's error includes.
pub(crate) fn raise(py: Python<'_>, error: impl Into<Error>) -> PyErr {
    to_python(py, &error.into())
}

/// The errors that caused an error, the direct cause first.
fn sources<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

fn io_error(error: &LoadError) -> Option<io::ErrorKind> {
    sources(error).find_map(|cause| cause.downcast_ref()).map(io::Error::kind)
}
