//! The error types of the crate.

mod analysis;
mod cache;
mod chain;
mod dump;
mod feature;
mod full_memory;
mod graph;
mod input;
mod load;
mod matrix;
mod patch;
#[cfg(feature = "plot")]
mod plot;
mod processing;
mod prompt_place;

use hooklens_hooks::{Halt, HookError};
use thiserror::Error;

pub use crate::config::ConfigError;
pub use analysis::AnalysisError;
pub use cache::CacheError;
pub use chain::error_chain;
pub use dump::DumpError;
pub use feature::FeatureError;
pub(crate) use full_memory::{device_out_of_what_memory, panicked_out_of_what_memory};
pub use graph::GraphError;
pub use input::InputError;
pub(crate) use input::UNKNOWN_WORDS;
pub use load::LoadError;
pub use matrix::MatrixError;
pub use patch::PatchError;
#[cfg(feature = "plot")]
pub use plot::PlotError;
pub use processing::ProcessingError;
pub use prompt_place::Place;

/// What some other crate reports.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any error of hooklens. Its message does not repeat that of its cause: [`error_chain`] tells both.
///
/// ```
/// use hooklens::{Error, HookError};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// match model.record("red fox", "blocks.0.attn.hook_patern") {
///     Err(Error::Hook(HookError::UnknownPoint { nearest, .. })) => {
///         assert_eq!(nearest[0], "blocks.0.attn.hook_pattern"); // before anything has run
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A hook, a selection or a recorded activation.
    #[error(transparent)]
    Hook(HookError),
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model's files.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What a model was run on.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A key-value cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A dump of activations.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// A dictionary of features.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// An attribution graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An analysis of a recording.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// A sweep of patches.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A factored matrix or a decomposition.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A picture.
    #[cfg(feature = "plot")]
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Processing of weights.
    #[error(transparent)]
    Processing(#[from] ProcessingError),
    /// A device.
    #[error("the device `{name}` can't be used: {reason}")]
    #[non_exhaustive]
    Device {
        /// The name given.
        name: String,
        /// Why it can't be used.
        reason: String,
    },
    /// A device that does not compute in the element type asked for.
    #[error("the device {device} does not compute in {dtype}; it does in {has}")]
    #[non_exhaustive]
    ElementType {
        /// The device.
        device: String,
        /// The element type asked for.
        dtype: String,
        /// Those that it computes in.
        has: String,
    },
    /// A device's memory is full.
    #[error(
        "out of memory on {devices}: {asked} were asked for; try fewer rows at once, or record fewer points or positions, or in 16 bits"
    )]
    #[non_exhaustive]
    OutOfMemory {
        /// The devices of the model.
        devices: String,
        /// How much the allocation that failed asked for.
        asked: String,
    },
    /// What is asked for is no finite number: the weights or a hook gave none.
    #[error("{what} is NaN or infinite: the weights, or a hook, gave what is no finite number")]
    #[non_exhaustive]
    NotANumber {
        /// What was asked for.
        what: String,
    },
    /// A run failed on the way.
    #[error("the run failed")]
    #[non_exhaustive]
    Run {
        /// What failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A device failed in the midst of its work; a remote one when its server is gone.
    #[error("the device {device} failed")]
    #[non_exhaustive]
    DeviceFailed {
        /// The device.
        device: String,
        /// What it says.
        source: BoxError,
    },
}

impl Error {
    /// The error that was passed through a run, or that the run met.
    fn from_source(source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        fn known<E: Into<Error> + std::error::Error + 'static>(
            source: Box<dyn std::error::Error + Send + Sync>,
        ) -> Result<Error, Box<dyn std::error::Error + Send + Sync>> {
            source.downcast::<E>().map(|known| (*known).into())
        }
        known::<Error>(source)
            .or_else(known::<CacheError>)
            .or_else(known::<InputError>)
            .unwrap_or_else(|source| Error::Run { source })
    }
}

impl From<HookError> for Error {
    fn from(error: HookError) -> Self {
        // What a device had no memory for it may say when its work is read.
        match &error {
            HookError::Io { name, .. } => match device_out_of_what_memory(&error) {
                Some(asked) => Error::OutOfMemory { devices: name.clone(), asked },
                None => Error::Hook(error),
            },
            _ => Error::Hook(error),
        }
    }
}

impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Error(error) => error.into(),
            Halt::Failed(source) => Error::from_source(source),
            Halt::Done => InputError::NoOutput { what: "output" }.into(),
        }
    }
}

/// Result of anything that can go wrong in hooklens.
///
/// ```
/// fn last_layer(name: &str) -> hooklens::Result<usize> {
///     let model = hooklens::HookedTransformer::from_pretrained(name)?;
///     Ok(model.config().n_layers - 1)
/// }
/// assert_eq!(last_layer("embedded:ioi")?, 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;
