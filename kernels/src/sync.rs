//! What the team synchronizes with: the standard library, or in its model loom, which tries the orders in which threads
//! may come.

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

/// [`std::cell::UnsafeCell`] with the methods of loom's.
#[cfg(not(all(test, loom)))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Shows the value for reading; whoever dereferences the pointer sees to it that nobody writes meanwhile.
    pub(crate) fn with<R>(&self, see: impl FnOnce(*const T) -> R) -> R {
        see(self.0.get())
    }

    /// Shows the value for writing; whoever dereferences the pointer sees to it that nobody else reads or writes
    /// meanwhile.
    pub(crate) fn with_mut<R>(&self, see: impl FnOnce(*mut T) -> R) -> R {
        see(self.0.get())
    }
}
