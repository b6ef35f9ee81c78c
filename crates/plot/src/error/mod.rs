//! The error types of this crate.

mod plot;

use hooklens_model::error::Error;

pub use plot::PlotError;

impl From<PlotError> for Error {
    fn from(error: PlotError) -> Self {
        Error::Other(error.into())
    }
}
