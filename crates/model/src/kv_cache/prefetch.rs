//! Prefetching: an offloaded layer is read while the layer before it computes.

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

    /// Begins to read.
    pub(super) fn begin(&mut self, read: impl FnOnce() -> Result<Vec<KeyBlock>, CacheError> + Send + 'static) {
        // Where no thread can be had, it is read when it is needed.
        self.0 = std::thread::Builder::new().name("hooklens-cache".into()).spawn(read).ok();
    }

    /// What was read; `None` if nothing was begun or the thread failed.
    pub(super) fn take(&mut self) -> Option<Vec<KeyBlock>> {
        self.0.take()?.join().ok()?.ok()
    }

    /// Discards what was read, because the layer has changed since.
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
