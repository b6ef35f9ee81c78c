//! The error types of this crate.

mod feature;
mod graph;

use hooklens_model::error::Error;

pub use feature::FeatureError;
pub use graph::GraphError;

impl From<FeatureError> for Error {
    fn from(error: FeatureError) -> Self {
        Error::Other(error.into())
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        Error::Other(error.into())
    }
}
