//! The error types of the crate.

mod cache;
mod chain;
mod full_memory;
mod input;
mod load;
pub mod load_errors;
mod processing;
mod prompt_place;
mod weight;

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
pub use prompt_place::{
    Place, place_of_line, place_of_line_after, place_of_line_in_frames, place_of_row, place_of_row_in,
};
pub use weight::WeightError;

/// A boxed error from another crate.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any hooklens error. The message does not include the cause; use [`error_chain`] to get both.
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
    /// Error from a hook, selection or recorded activation.
    #[error(transparent)]
    Hook(HookError),
    /// Error from a configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Error from loading or saving a model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Error from a model's input or options.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Error from a key-value cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Error from weight processing.
    #[error(transparent)]
    Processing(#[from] ProcessingError),
    /// Error from accessing a weight by name.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A device cannot be used.
    #[error("the device `{name}` can't be used: {reason}")]
    Device {
        /// Name of the device.
        name: String,
        /// Why the device cannot be used.
        reason: String,
    },
    /// A device does not support the requested element type.
    #[error("the device {device} does not support {dtype}; it supports {has}")]
    ElementType {
        /// Name of the device.
        device: String,
        /// The requested element type.
        dtype: String,
        /// Supported element types.
        has: String,
    },
    /// A device is out of memory.
    #[error(
        "out of memory on {devices}: failed to allocate {asked}; use fewer rows at once, record fewer points or \
         positions, or use a 16-bit element type"
    )]
    OutOfMemory {
        /// The devices of the model.
        devices: String,
        /// Size of the failed allocation.
        asked: String,
    },
    /// A result is not finite, because of the weights or a hook.
    #[error("{what} is NaN or infinite; check the weights and the hooks for values that are not finite")]
    NotANumber {
        /// What was requested.
        what: String,
    },
    /// A run failed.
    #[error("the run failed")]
    Run {
        /// Underlying error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A device failed during computation; for a remote device, its server may be gone.
    #[error("the device {device} failed")]
    DeviceFailed {
        /// Name of the device.
        device: String,
        /// The device's error.
        source: BoxError,
    },
    /// Error from a hooklens crate that depends on this one. Use [`Error::downcast_ref`] to get the concrete type.
    #[error(transparent)]
    Other(BoxError),
}

impl Error {
    /// The wrapped error, if its type is `E`.
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
            Error::Weight(error) => error,
            Error::Other(error) => &**error,
            _ => self,
        };
        error.downcast_ref()
    }

    /// Recovers the original hooklens error from an error that passed through a run.
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
        // A device may report an out-of-memory error only when its results are read.
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

/// Result type of hooklens.
///
/// ```
/// # use hooklens::FromPretrained;
/// fn last_layer(name: &str) -> hooklens::Result<usize> {
///     let model = hooklens::HookedTransformer::from_pretrained(name)?;
///     Ok(model.config().n_layers() - 1)
/// }
/// assert_eq!(last_layer("embedded:ioi")?, 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;
