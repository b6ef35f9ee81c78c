//! The error types of the crate.

mod cache;
mod chain;
mod full_memory;
mod input;
mod load;
mod processing;
mod prompt_place;

use hooklens_hooks::{Halt, HookError};
use thiserror::Error;

pub use crate::config::ConfigError;
pub use cache::CacheError;
pub use chain::error_chain;
pub(crate) use full_memory::{device_out_of_what_memory, panicked_out_of_what_memory};
pub use input::InputError;
pub(crate) use input::UNKNOWN_WORDS;
pub use load::LoadError;
pub use processing::ProcessingError;
pub use prompt_place::Place;

/// What some other crate reports.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

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
    /// Processing of weights.
    #[error(transparent)]
    Processing(#[from] ProcessingError),
    /// A device.
    #[error("the device `{name}` can't be used: {reason}")]
    Device {
        /// The name given.
        name: String,
        /// Why it can't be used.
        reason: String,
    },
    /// A device that does not compute in the element type asked for.
    #[error("the device {device} does not compute in {dtype}; it does in {has}")]
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
    OutOfMemory {
        /// The devices of the model.
        devices: String,
        /// How much the allocation that failed asked for.
        asked: String,
    },
    /// What is asked for is no finite number: the weights or a hook gave none.
    #[error("{what} is NaN or infinite: the weights, or a hook, gave what is no finite number")]
    NotANumber {
        /// What was asked for.
        what: String,
    },
    /// A run failed on the way.
    #[error("the run failed")]
    Run {
        /// What failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A device failed in the midst of its work; a remote one when its server is gone.
    #[error("the device {device} failed")]
    DeviceFailed {
        /// The device.
        device: String,
        /// What it says.
        source: BoxError,
    },
    /// An error of a part of hooklens that builds on models: read it with [`Error::downcast_ref`].
    #[error(transparent)]
    Other(BoxError),
}

impl Error {
    /// Wraps the error of a part of hooklens that builds on models.
    pub fn other(source: impl Into<BoxError>) -> Self {
        Error::Other(source.into())
    }

    /// The error of one area, if this is one: `error.downcast_ref::<InputError>()`.
    ///
    /// ```
    /// use hooklens::patching::PatchError;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let error = Patching::new(&model, "When Mary", "When", metric).unwrap_err();
    /// assert!(matches!(error.downcast_ref(), Some(PatchError::Lengths { .. })));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        let error: &(dyn std::error::Error + 'static) = match self {
            Error::Hook(error) => error,
            Error::Config(error) => error,
            Error::Load(error) => error,
            Error::Input(error) => error,
            Error::Cache(error) => error,
            Error::Processing(error) => error,
            Error::Other(error) => &**error,
            _ => self,
        };
        error.downcast_ref()
    }

    /// The error of one area itself, or this error if it is another.
    ///
    /// # Errors
    /// This error, if it is of another type.
    pub fn downcast<E: std::error::Error + Send + Sync + 'static>(self) -> Result<E, Self> {
        if self.downcast_ref::<E>().is_none() {
            return Err(self);
        }
        let source: BoxError = match self {
            Error::Hook(error) => error.into(),
            Error::Config(error) => error.into(),
            Error::Load(error) => error.into(),
            Error::Input(error) => error.into(),
            Error::Cache(error) => error.into(),
            Error::Processing(error) => error.into(),
            Error::Other(error) => error,
            other => return Err(other),
        };
        source.downcast().map(|error| *error).map_err(Error::Other)
    }

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
