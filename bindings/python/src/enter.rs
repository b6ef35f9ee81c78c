//! Entry point into Rust for every call that computes: without the GIL, interruptible, and safe after a fork.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hooklens::Result;
use hooklens_model::between_blocks::call_between_blocks;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::to_python;

/// How often a long call lets Python handle signals.
const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// Set in a process that was forked from one that had loaded this module.
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is in [`enter`], where an interruption can be raised.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    static LAST_CHECK: Cell<Option<Instant>> = const { Cell::new(None) };
    static HAS_OWN_THREADS: Cell<bool> = const { Cell::new(false) };
}

/// Python's exception from a signal handler or from a function that cannot return an error, carried through Rust code as
/// a panic.
struct Raised(PyErr);

/// Runs `work` without the GIL and converts its error.
pub(crate) fn enter<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    LAST_CHECK.set(Some(Instant::now()));
    call_between_blocks(check_signals);
    let outer = ENTERED.replace(true);
    let done = py.detach(|| {
        catch_unwind(AssertUnwindSafe(|| {
            use_own_threads();
            work()
        }))
    });
    ENTERED.set(outer);
    match done {
        Ok(done) => done.map_err(|error| to_python(py, &error)),
        Err(panic) => match panic.downcast::<Raised>() {
            Ok(raised) => Err(raised.0),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// Lets Python handle signals, at most every [`BETWEEN_CHECKS`]. If a handler raises (Ctrl-C), unwinds to [`enter`],
/// which raises the exception in Python. Locks and caches are restored on the way, as after any panic.
pub(crate) fn check_signals() {
    if !ENTERED.get() || LAST_CHECK.get().is_some_and(|last| last.elapsed() < BETWEEN_CHECKS) {
        return;
    }
    LAST_CHECK.set(Some(Instant::now()));
    if let Err(raised) = Python::attach(|py| py.check_signals()) {
        end_run(raised);
    }
}

/// Ends the run in which a Python function raised: unwinds to [`enter`], which raises the exception in Python.
pub(crate) fn end_run(raised: PyErr) -> ! {
    resume_unwind(Box::new(Raised(raised)))
}

/// Reports that this process was forked: threads of the parent do not exist here.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// In a forked process, gives the current thread a pool without other threads. The pool of the parent has lost its
/// threads, so work sent to it would never be done.
fn use_own_threads() {
    if FORKED.load(Ordering::Relaxed) && !HAS_OWN_THREADS.replace(true) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        // The thread stays a member of the pool as long as it lives.
        if let Ok(pool) = pool {
            std::mem::forget(pool);
        }
    }
}

/// An error for a value that is in use by a run.
pub(crate) fn in_use(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("this {what} is in use by a run; use it after the run has ended"))
}
