//! Synchronization primitives of the thread pool: the standard library's, or loom's in the model test that explores
//! thread interleavings.

#[cfg(all(test, loom))]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::yield_now,
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::yield_now,
};

/// [`std::cell::UnsafeCell`] with the methods of loom's `UnsafeCell`.
#[cfg(not(all(test, loom)))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Passes a pointer for reading; the caller ensures that nothing writes while it is dereferenced.
    pub(crate) fn with<R>(&self, see: impl FnOnce(*const T) -> R) -> R {
        see(self.0.get())
    }

    /// Passes a pointer for writing; the caller ensures that nothing else reads or writes while it is dereferenced.
    pub(crate) fn with_mut<R>(&self, see: impl FnOnce(*mut T) -> R) -> R {
        see(self.0.get())
    }
}
