//! The error types of this crate.

mod dump;

use hooklens_model::error::Error;

pub use dump::DumpError;

impl From<DumpError> for Error {
    fn from(error: DumpError) -> Self {
        Error::other(error)
    }
}
