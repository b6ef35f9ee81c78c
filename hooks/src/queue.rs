//! Named first-in-first-out queues, between passes and between threads.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::activation::Activation;
use crate::suggest::nearest;

/// Queues of values by name, and beside them single values by name. Clones are handles on the
/// same queues; a value pushed on one thread can be popped on another.
///
/// A pass pushes what a later one needs; that one pops it, in order:
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::{ActivationQueue, QueueError};
///
/// let queue = ActivationQueue::new();
/// let tensor = |x: f32| Tensor::<1>::from_floats([x], &Device::flex());
/// queue.push("k0", tensor(1.0))?;
/// queue.push("k0", tensor(2.0))?;
/// assert_eq!((queue.q_size("k0"), queue.q_size("k1")), (Some(2), None));
/// assert_eq!(queue.pop("k0")?.to_ndarray()?[[0]], 1.0);
/// queue.pop("k0")?;
/// assert_eq!(queue.pop("k0").unwrap_err(), QueueError::Empty { name: "k0".into() });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Bounded queues make room wait for a reader, or refuse:
///
/// ```
/// use hooklens_hooks::{ActivationQueue, WhenFull};
///
/// let numbers = ActivationQueue::<i32>::bounded(2, WhenFull::Block);
/// let reader = numbers.clone();
/// let sum = std::thread::spawn(move || std::iter::from_fn(|| reader.wait("n").ok()).sum::<i32>());
/// (1..=10).try_for_each(|n| numbers.push("n", n))?;
/// numbers.close();
/// assert_eq!(sum.join().unwrap(), 55);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ActivationQueue<T = Activation> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Told of every push, pop and close.
    changed: Condvar,
    limit: Option<(usize, WhenFull)>,
}

struct State<T> {
    queues: HashMap<String, VecDeque<T>>,
    values: HashMap<String, T>,
    closed: bool,
}

/// What pushing to a full queue does.
///
/// ```
/// use hooklens_hooks::{ActivationQueue, QueueError, WhenFull};
/// let one = ActivationQueue::<i32>::bounded(1, WhenFull::Refuse);
/// one.push("n", 1)?;
/// let refused = one.push("n", 2).unwrap_err();
/// assert_eq!((refused.value, refused.error), (2, QueueError::Full { name: "n".into(), limit: 1 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Waits until there is room.
    Block,
    /// Gives the value back.
    Refuse,
}

/// Why a queue gave or took nothing.
///
/// ```
/// use hooklens_hooks::ActivationQueue;
/// let queue = ActivationQueue::<i32>::unbounded();
/// queue.push("keys", 1)?;
/// let told = queue.pop("key").unwrap_err().to_string();
/// assert_eq!(told, "there is no queue `key`; there are keys");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Nothing was ever pushed under this name.
    #[error("there is no queue `{name}`; there are {}", list(nearest))]
    Absent {
        /// The name asked for.
        name: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// Everything pushed was popped.
    #[error("the queue `{name}` is empty")]
    Empty {
        /// The queue.
        name: String,
    },
    /// The queue holds as much as it may.
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

impl<T> Default for ActivationQueue<T> {
    fn default() -> Self {
        Self::unbounded()
    }
}

impl<T> Clone for ActivationQueue<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl ActivationQueue {
    /// Queues of activations, without a limit.
    pub fn new() -> Self {
        Self::unbounded()
    }

    /// One for the whole program.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// assert_eq!(ActivationQueue::shared().q_size("no one pushed this"), None);
    /// ```
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<ActivationQueue> = LazyLock::new(ActivationQueue::new);
        &SHARED
    }
}

impl<T> ActivationQueue<T> {
    fn made(limit: Option<(usize, WhenFull)>) -> Self {
        let state = State { queues: HashMap::new(), values: HashMap::new(), closed: false };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), limit }) }
    }

    /// Queues without a limit.
    pub fn unbounded() -> Self {
        Self::made(None)
    }

    /// Queues that hold at most `limit` values each (at least one).
    ///
    /// ```
    /// use hooklens_hooks::{ActivationQueue, WhenFull};
    /// let two = ActivationQueue::<i32>::bounded(2, WhenFull::Refuse);
    /// let taken = (1..=3).filter(|n| two.push("n", *n).is_ok()).count();
    /// assert_eq!((taken, two.q_size("n")), (2, Some(2)));
    /// ```
    pub fn bounded(limit: usize, when_full: WhenFull) -> Self {
        Self::made(Some((limit.max(1), when_full)))
    }

    /// A thread that panicked while it held the lock left the queues as they were: nothing is
    /// half done under it.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a value at the end of a queue, which is made if need be.
    ///
    /// # Errors
    /// [`Rejected`] with the value, if the queue is full and refuses, or closed.
    pub fn push(&self, name: &str, value: impl Into<T>) -> Result<(), Rejected<T>> {
        let value = value.into();
        let mut state = self.state();
        loop {
            if state.closed {
                return Err(Rejected { value, error: QueueError::Closed { name: name.into() } });
            }
            let held = state.queues.get(name).map_or(0, VecDeque::len);
            match self.shared.limit.filter(|(limit, _)| held >= *limit) {
                None => break,
                Some((limit, WhenFull::Refuse)) => {
                    return Err(Rejected { value, error: QueueError::Full { name: name.into(), limit } });
                }
                Some((_, WhenFull::Block)) => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        state.queues.entry(name.to_string()).or_default().push_back(value);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Takes the oldest value of a queue.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// (1..=2).try_for_each(|n| queue.push("n", n))?;
    /// assert_eq!((queue.pop("n")?, queue.pop("n")?), (1, 2)); // the oldest first
    /// assert!(queue.pop("n").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Absent`], [`QueueError::Empty`], or [`QueueError::Closed`] once a closed
    /// queue is empty.
    pub fn pop(&self, name: &str) -> Result<T, QueueError> {
        let mut state = self.state();
        let popped = state.queues.get_mut(name).and_then(VecDeque::pop_front);
        if let Some(value) = popped {
            self.shared.changed.notify_all();
            return Ok(value);
        }
        let name = name.to_string();
        Err(match (state.closed, state.queues.contains_key(&name)) {
            (true, _) => QueueError::Closed { name },
            (false, true) => QueueError::Empty { name },
            (false, false) => {
                let nearest = nearest(&name, state.queues.keys().map(String::as_str));
                QueueError::Absent { name, nearest }
            }
        })
    }

    /// [`ActivationQueue::pop`] that waits for a value if there is none yet.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// let writer = queue.clone(); // a handle on the same queues
    /// let writes = std::thread::spawn(move || writer.push("n", 7).is_ok());
    /// assert_eq!(queue.wait("n")?, 7);
    /// assert!(writes.join().is_ok_and(|done| done));
    /// # Ok::<(), hooklens_hooks::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Closed`] once the queues are closed and this one is empty.
    pub fn wait(&self, name: &str) -> Result<T, QueueError> {
        let mut state = self.state();
        loop {
            if let Some(value) = state.queues.get_mut(name).and_then(VecDeque::pop_front) {
                self.shared.changed.notify_all();
                return Ok(value);
            }
            if state.closed {
                return Err(QueueError::Closed { name: name.into() });
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Values in a queue; `None` if there is no such queue.
    pub fn q_size(&self, name: &str) -> Option<usize> {
        self.state().queues.get(name).map(VecDeque::len)
    }

    /// From here on nothing is taken; what is held can still be popped, and whoever waits for
    /// more is told that there will be none.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// queue.push("n", 1)?;
    /// queue.close();
    /// assert_eq!(queue.wait("n")?, 1); // what is held can still be had
    /// assert!(queue.wait("n").is_err() && queue.push("n", 2).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.state().closed = true;
        self.shared.changed.notify_all();
    }

    /// Keeps a single value under a name, beside the queues.
    pub fn set(&self, name: &str, value: impl Into<T>) {
        self.state().values.insert(name.to_string(), value.into());
    }

    /// The single value of a name, or the default.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// queue.set("count", 3);
    /// assert_eq!((queue.get("count", 0), queue.get("other", 0)), (3, 0));
    /// queue.clear("count");
    /// assert_eq!(queue.get("count", 0), 0);
    /// ```
    pub fn get(&self, name: &str, default: impl Into<T>) -> T
    where
        T: Clone,
    {
        self.state().values.get(name).cloned().unwrap_or_else(|| default.into())
    }

    /// Forgets a name's queue and single value.
    pub fn clear(&self, name: &str) {
        let mut state = self.state();
        state.queues.remove(name);
        state.values.remove(name);
        self.shared.changed.notify_all();
    }

    /// Forgets everything.
    pub fn clear_all(&self) {
        let mut state = self.state();
        state.queues.clear();
        state.values.clear();
        self.shared.changed.notify_all();
    }
}

impl<T> fmt::Debug for ActivationQueue<T> {
    /// Names and sizes, never values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let mut sizes: Vec<_> = state.queues.iter().map(|(name, queue)| (name, queue.len())).collect();
        sizes.sort();
        f.debug_map().entries(sizes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error_value() {
        let queue = ActivationQueue::<i32>::unbounded();
        assert!(matches!(queue.pop("blocks.0.hook_k"), Err(QueueError::Absent { nearest, .. }) if nearest.is_empty()));
        queue.push("blocks.0.hook_k", 1).unwrap();
        assert!(
            matches!(queue.pop("blocks.1.hook_k"), Err(QueueError::Absent { nearest, .. }) if nearest == ["blocks.0.hook_k"])
        );
        assert_eq!(queue.pop("blocks.0.hook_k"), Ok(1));
        assert_eq!(queue.pop("blocks.0.hook_k"), Err(QueueError::Empty { name: "blocks.0.hook_k".into() }));
        assert_eq!(queue.q_size("blocks.0.hook_k"), Some(0));
        queue.clear("blocks.0.hook_k");
        assert_eq!(queue.q_size("blocks.0.hook_k"), None);
    }

    #[test]
    fn single_values_have_defaults() {
        let queue = ActivationQueue::<i32>::unbounded();
        assert_eq!(queue.get("mean", 7), 7);
        queue.set("mean", 3);
        assert_eq!((queue.get("mean", 7), queue.q_size("mean")), (3, None));
        queue.clear_all();
        assert_eq!(queue.get("mean", 7), 7);
    }

    #[test]
    fn a_full_queue_gives_the_value_back() {
        let queue = ActivationQueue::<i32>::bounded(1, WhenFull::Refuse);
        queue.push("n", 1).unwrap();
        let Rejected { value, error } = queue.push("n", 2).unwrap_err();
        assert_eq!((value, error), (2, QueueError::Full { name: "n".into(), limit: 1 }));
        queue.push("other", 2).unwrap();
        queue.close();
        assert_eq!(queue.push("n", 3).unwrap_err().error, QueueError::Closed { name: "n".into() });
        assert_eq!((queue.wait("n"), queue.wait("n")), (Ok(1), Err(QueueError::Closed { name: "n".into() })));
    }

    #[test]
    fn threads_meet_in_order() {
        let queue = ActivationQueue::<i32>::bounded(3, WhenFull::Block);
        let reader = queue.clone();
        let read = std::thread::spawn(move || std::iter::from_fn(|| reader.wait("n").ok()).collect::<Vec<i32>>());
        (0..100).try_for_each(|n| queue.push("n", n)).unwrap();
        queue.close();
        assert_eq!(read.join().unwrap(), (0..100).collect::<Vec<_>>());
        // A writer that waits for room is told when there will be none.
        let full = ActivationQueue::<i32>::bounded(1, WhenFull::Block);
        full.push("n", 1).unwrap();
        let writer = full.clone();
        let waiting = std::thread::spawn(move || writer.push("n", 2));
        full.close();
        assert!(waiting.join().unwrap().is_err());
    }
}
