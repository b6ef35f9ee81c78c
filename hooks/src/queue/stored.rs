//! The value or queue stored under a name.

/// The value or queue stored under a name.
///
/// ```
/// use hooklens_hooks::{ActivationQueue, Stored};
/// let cache = ActivationQueue::<i32>::unbounded();
/// (1..=3).try_for_each(|n| cache.push("losses", n))?;
/// cache.set("best", 1);
/// assert_eq!(cache.try_get("losses"), Some(Stored::Queue(vec![1, 2, 3]))); // oldest first
/// assert_eq!(cache.get("best", 0), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// A single value, from [`ActivationQueue::set`](super::ActivationQueue::set).
    Value(T),
    /// The values of a queue, oldest first.
    Queue(Vec<T>),
}

impl<T: PartialEq> PartialEq<T> for Stored<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Stored::Value(value) if value == other)
    }
}
