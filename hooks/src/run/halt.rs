//! Why a run ends early.

use crate::error::HookError;

/// Why a run ends before its last step.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
/// let mut run = Run::new(&catalog, &mut [], Record::new("hook_embed"), rows, &|_| None)?;
/// run.stop_when_done();
/// // The only requested point is the first to fire, so nothing after it needs to be computed.
/// let halted = run.fire(Some(ids[0]), Tensor::<3>::ones([1, 3, 4], &Device::flex()));
/// assert!(matches!(halted, Err(Halt::Done)) && run.is_done());
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug)]
pub enum Halt {
    /// Every watched point has fired, and the rest of the run is not needed.
    Done,
    /// A hook failed or returned an unsuitable tensor.
    Error(HookError),
    /// Any other failure during the run, for example in a part, a cache or a device.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl From<Halt> for HookError {
    /// Converts the reason to an error, for a run that must not end early.
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Error(error) => error,
            Halt::Failed(source) => HookError::Model { source },
            Halt::Done => HookError::Model { source: "it stopped early, but its output is needed".into() },
        }
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Halt {
    fn from(error: E) -> Self {
        match error.into().downcast::<HookError>() {
            Ok(known) => Halt::Error(*known),
            Err(source) => Halt::Failed(source),
        }
    }
}
