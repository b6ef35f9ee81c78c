//! Prefetching: an offloaded layer is read while the previous layer computes.

use std::fmt;
use std::thread::JoinHandle;

use super::keys::KeyBlock;
use crate::error::CacheError;

/// The read in progress on another thread, if any. A clone has none.
#[derive(Default)]
pub(super) struct Prefetch(Option<JoinHandle<Result<Vec<KeyBlock>, CacheError>>>);

impl Prefetch {
    pub(super) fn is_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the read.
    pub(super) fn begin(&mut self, read: impl FnOnce() -> Result<Vec<KeyBlock>, CacheError> + Send + 'static) {
        // If no thread can be started, the layer is read when it is needed.
        self.0 = std::thread::Builder::new().name("hooklens-cache".into()).spawn(read).ok();
    }

    /// The result of the read; `None` if none was started or it failed.
    pub(super) fn take(&mut self) -> Option<Vec<KeyBlock>> {
        self.0.take()?.join().ok()?.ok()
    }

    /// Discards the read, because the layer has changed.
    pub(super) fn discard(&mut self) {
        self.0 = None;
    }
}

impl Clone for Prefetch {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_begun() { "reading" } else { "idle" })
    }
}
