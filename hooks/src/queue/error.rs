//! Queue errors.

use std::fmt;

use thiserror::Error;

/// An error from a queue operation.
///
/// ```
/// use hooklens_hooks::ActivationQueue;
/// let queue = ActivationQueue::<i32>::unbounded();
/// queue.push("keys", 1)?;
/// let message = queue.pop("key").unwrap_err().to_string();
/// assert_eq!(message, "nothing is stored under `key`; similar names: keys");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Nothing is stored under the name, neither a queue nor a value.
    #[error("nothing is stored under `{name}`; similar names: {}", list(nearest))]
    Absent {
        /// The requested name.
        name: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// A single value is stored under the name, so nothing can be pushed or popped.
    #[error("`{name}` is a single value, not a queue; `clear` it first")]
    NoQueue {
        /// The name.
        name: String,
    },
    /// The queue exists but has no values left.
    #[error("the queue `{name}` is empty")]
    Empty {
        /// The queue.
        name: String,
    },
    /// The queue is full.
    #[error("the queue `{name}` is full: it holds {limit} values")]
    Full {
        /// The queue.
        name: String,
        /// Maximum number of values.
        limit: usize,
    },
    /// The queues were closed: no more values are accepted, and none are left.
    #[error("the queue `{name}` is closed")]
    Closed {
        /// The queue.
        name: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A value that was not accepted, with the reason.
///
/// ```
/// use hooklens_hooks::ActivationQueue;
/// let queue = ActivationQueue::<String>::unbounded();
/// queue.close();
/// let rejected = queue.push("texts", "late").unwrap_err();
/// assert_eq!(rejected.value, "late"); // the value is handed back
/// assert_eq!(rejected.error.to_string(), "the queue `texts` is closed");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Rejected<T> {
    /// The value.
    pub value: T,
    /// Why it was not accepted.
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
