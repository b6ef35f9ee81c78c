//! The value or queue stored under a name.

/// The value or queue stored under a name.
///
/// ```
/// use hooklens_hooks::{ActivationQueue, Stored};
/// let cache = ActivationQueue::<i32>::unbounded();
/// (1..=3).try_for_each(|n| cache.push("losses", n))?;
/// cache.set("best", 1);
/// assert_eq!(cache.try_get("losses"), Some(Stored::Queue(vec![1, 2, 3]))); // oldest first
/// assert_eq!(cache.try_get("best").and_then(Stored::into_value), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// A single value, from [`ActivationQueue::set`](super::ActivationQueue::set).
    Value(T),
    /// The values of a queue, oldest first.
    Queue(Vec<T>),
}

impl<T> Stored<T> {
    /// The single value; `None` for a queue.
    pub fn into_value(self) -> Option<T> {
        match self {
            Stored::Value(value) => Some(value),
            Stored::Queue(_) => None,
        }
    }

    /// The queue's values, oldest first; `None` for a single value.
    pub fn into_queue(self) -> Option<Vec<T>> {
        match self {
            Stored::Queue(queue) => Some(queue),
            Stored::Value(_) => None,
        }
    }
}

impl<T: PartialEq> PartialEq<T> for Stored<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Stored::Value(value) if value == other)
    }
}
