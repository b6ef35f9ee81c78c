//! Python exceptions for the library's errors.

use std::error::Error as StdError;
use std::io;

use hooklens::{Error, HookError, InputError, LoadError, WeightError, error_chain};
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyKeyError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

/// The exception for an error: the one that a Python function raised, if that caused it, or else an exception with the
/// error's message and the messages of its sources.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(raised) = error.downcast_ref::<PyErr>() {
        return raised.clone_ref(py);
    }
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<PyErr>() {
            return raised.clone_ref(py);
        }
        source = cause.source();
    }
    if let Some(raised) = error.downcast_ref::<HookError>().and_then(raised_in_hook) {
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

fn raised_in_hook(error: &HookError) -> Option<&PyErr> {
    match error {
        HookError::Failed { source, .. } => source.downcast_ref::<PyErr>(),
        _ => None,
    }
}

fn io_error(error: &LoadError) -> Option<io::ErrorKind> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return Some(cause.kind());
        }
        source = cause.source();
    }
    None
}
