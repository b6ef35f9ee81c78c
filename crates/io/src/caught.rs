//! Panics of libraries that become errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Does the work, or gives what it panicked with.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    let before = CATCHING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    done
}

/// Keeps the process from printing panics that become errors.
pub fn print_others_only() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !CATCHING.get() {
            print(panic);
        }
    }));
}
