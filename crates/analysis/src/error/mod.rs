//! The error types of this crate.

mod analysis;
mod circuit;
mod matrix;
mod patch;
mod prompt_set;
mod statistics;

use hooklens_model::error::Error;

pub use analysis::AnalysisError;
pub use circuit::CircuitError;
pub use matrix::MatrixError;
pub use patch::PatchError;
pub use prompt_set::PromptSetError;
pub use statistics::StatisticsError;

impl From<AnalysisError> for Error {
    fn from(error: AnalysisError) -> Self {
        Error::Other(error.into())
    }
}

impl From<CircuitError> for Error {
    fn from(error: CircuitError) -> Self {
        Error::Other(error.into())
    }
}

impl From<MatrixError> for Error {
    fn from(error: MatrixError) -> Self {
        Error::Other(error.into())
    }
}

impl From<PatchError> for Error {
    fn from(error: PatchError) -> Self {
        Error::Other(error.into())
    }
}

impl From<StatisticsError> for Error {
    fn from(error: StatisticsError) -> Self {
        Error::Other(error.into())
    }
}

impl From<PromptSetError> for Error {
    fn from(error: PromptSetError) -> Self {
        Error::Other(error.into())
    }
}
