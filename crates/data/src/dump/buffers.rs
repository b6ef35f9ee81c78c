//! Reusable buffers.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers for a chunk's bytes or values. They are reused because obtaining new memory from the operating system takes
/// about as long as reading data into it from the page cache.
#[derive(Debug, Clone)]
pub(super) struct Buffers<T>(Arc<Mutex<Vec<Vec<T>>>>);

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Default> Buffers<T> {
    /// Returns a buffer of this length with unspecified contents.
    pub(super) fn take(&self, len: usize) -> Vec<T> {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.resize(len, T::default());
        buffer
    }

    /// Returns buffers for reuse.
    pub(super) fn give(&self, buffers: impl IntoIterator<Item = Vec<T>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }
}
