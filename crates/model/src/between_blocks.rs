//! A callback that runs between the parts of a model, for programs that must react to signals while a model runs.

use std::sync::OnceLock;

static CALLBACK: OnceLock<fn()> = OnceLock::new();

/// Sets a function that every run calls before each token mixer and each MLP, on the thread of the run. The
/// function may panic to end the run; the run's key-value caches are then restored. Only the first function that is set
/// is kept.
pub fn call_between_blocks(callback: fn()) {
    let _ = CALLBACK.set(callback);
}

/// Calls the function set with [`call_between_blocks`], if there is one.
#[inline]
pub(crate) fn between_blocks() {
    if let Some(callback) = CALLBACK.get() {
        callback();
    }
}
