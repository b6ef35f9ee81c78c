//! Errors of queues.

use std::fmt;

use thiserror::Error;

/// Errors of queues.
///
/// ```
/// use hooklens_hooks::ActivationQueue;
/// let queue = ActivationQueue::<i32>::unbounded();
/// queue.push("keys", 1)?;
/// let told = queue.pop("key").unwrap_err().to_string();
/// assert_eq!(told, "there is no `key`; there are keys");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The name holds nothing: neither a queue nor a value.
    #[error("there is no `{name}`; there are {}", list(nearest))]
    Absent {
        /// The name asked for.
        name: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// The name holds a single value, which can't be pushed to or popped.
    #[error("`{name}` holds a single value, no queue; `clear` it first")]
    NoQueue {
        /// The name.
        name: String,
    },
    /// Everything pushed was popped.
    #[error("the queue `{name}` is empty")]
    Empty {
        /// The queue.
        name: String,
    },
    /// The queue is full.
    #[error("the queue `{name}` holds {limit} values and takes no more")]
    Full {
        /// The queue.
        name: String,
        /// Values it may hold.
        limit: usize,
    },
    /// The queues were closed: nothing more is taken, and nothing is left.
    #[error("the queue `{name}` is closed")]
    Closed {
        /// The queue.
        name: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A value that was not taken, and why.
///
/// ```
/// use hooklens_hooks::ActivationQueue;
/// let queue = ActivationQueue::<String>::unbounded();
/// queue.close();
/// let rejected = queue.push("texts", "late").unwrap_err();
/// assert_eq!(rejected.value, "late"); // nothing is lost
/// assert_eq!(rejected.error.to_string(), "the queue `texts` is closed");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Rejected<T> {
    /// The value.
    pub value: T,
    /// Why it was not taken.
    pub error: QueueError,
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejected({:?})", self.error)
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Rejected<T> {}
