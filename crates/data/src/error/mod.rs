//! The error types of this crate.

mod dump;
mod shard;

use hooklens_model::error::Error;

pub use dump::DumpError;
pub use shard::ShardError;

impl From<DumpError> for Error {
    fn from(error: DumpError) -> Self {
        Error::Other(error.into())
    }
}

impl From<ShardError> for Error {
    fn from(error: ShardError) -> Self {
        Error::Other(error.into())
    }
}
