//! Named first-in, first-out queues for passing values between forward passes and threads.

mod error;
mod stored;
#[cfg(test)]
mod tests;

use std::any::{Any, TypeId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

pub use error::{QueueError, Rejected};
pub use stored::Stored;

use crate::activation::Activation;
use crate::suggest::nearest;

/// Queues of values, keyed by name. A name may also hold a single value. Clones are handles to the same queues, so a
/// value pushed on one thread can be popped on another.
///
/// One pass pushes values that a later pass pops, in order:
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
/// When a bounded queue is full, a push either blocks until there is room or is rejected:
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
    /// Notified on every push, pop, and close.
    changed: Condvar,
    limit: Option<(usize, WhenFull)>,
}

struct State<T> {
    held: HashMap<String, Held<T>>,
    closed: bool,
}

enum Held<T> {
    Queue(VecDeque<T>),
    Value(T),
}

impl<T> State<T> {
    /// The queue with this name. Returns an error if the name holds a single value.
    fn queue(&mut self, name: &str) -> Result<Option<&mut VecDeque<T>>, QueueError> {
        match self.held.get_mut(name) {
            Some(Held::Queue(queue)) => Ok(Some(queue)),
            Some(Held::Value(_)) => Err(QueueError::NoQueue { name: name.into() }),
            None => Ok(None),
        }
    }

    fn absent(&self, name: &str) -> QueueError {
        let nearest = nearest(name, self.held.keys().map(String::as_str));
        QueueError::Absent { name: name.into(), nearest }
    }
}

/// What a push to a full queue does.
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
    /// Blocks until there is room.
    Block,
    /// Rejects the value and returns it.
    Refuse,
}

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
    /// Creates queues of activations without a limit.
    pub fn new() -> Self {
        Self::unbounded()
    }

    /// Global queues of activations, shared by the whole program. In an evcxr notebook, each cell has its own; keep a
    /// queue in a variable there.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// assert_eq!(ActivationQueue::shared().q_size("no one pushed this"), None);
    /// ```
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<ActivationQueue> = LazyLock::new(ActivationQueue::new);
        &SHARED
    }

    /// Global queues of values of type `T`, shared by the whole program, but not by the cells of an evcxr notebook.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// ActivationQueue::shared_of::<f64>().set("temperature", 0.7);
    /// // Elsewhere in the program:
    /// assert_eq!(ActivationQueue::shared_of::<f64>().get("temperature", 1.0), 0.7);
    /// assert!(ActivationQueue::shared_of::<u8>().try_get("temperature").is_none()); // other types have other queues
    /// ```
    pub fn shared_of<T: Send + 'static>() -> ActivationQueue<T> {
        static SHARED: LazyLock<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || Box::new(ActivationQueue::<T>::unbounded()) as Box<dyn Any + Send>;
        let of_type = all.entry(TypeId::of::<T>()).or_insert_with(made);
        of_type.downcast_ref::<ActivationQueue<T>>().cloned().unwrap_or_default()
    }
}

impl<T> ActivationQueue<T> {
    fn made(limit: Option<(usize, WhenFull)>) -> Self {
        let state = State { held: HashMap::new(), closed: false };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), limit }) }
    }

    /// Creates queues without a limit.
    pub fn unbounded() -> Self {
        Self::made(None)
    }

    /// Creates queues that hold at most `limit` values each. A limit of 0 counts as 1.
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

    /// Locks the state. Poisoning is ignored, because no critical section leaves the queues half modified.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a value to a queue, creating the queue if needed.
    ///
    /// # Errors
    /// [`Rejected`] with the value, if the queue is full and set to [`WhenFull::Refuse`], if the queues are closed, or
    /// if the name holds a single value.
    pub fn push(&self, name: &str, value: impl Into<T>) -> Result<(), Rejected<T>> {
        let value = value.into();
        let mut state = self.state();
        loop {
            if state.closed {
                return Err(Rejected { value, error: QueueError::Closed { name: name.into() } });
            }
            let held = match state.queue(name) {
                Ok(queue) => queue.map_or(0, |queue| queue.len()),
                Err(error) => return Err(Rejected { value, error }),
            };
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
        match state.held.get_mut(name) {
            Some(Held::Queue(queue)) => queue.push_back(value),
            _ => drop(state.held.insert(name.to_string(), Held::Queue(VecDeque::from([value])))),
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Removes and returns the oldest value of a queue.
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
    /// [`QueueError::NoQueue`] if the name holds a single value. If there is no value to pop: [`QueueError::Closed`] if
    /// the queues are closed, [`QueueError::Empty`] if the queue is empty, or [`QueueError::Absent`] if it does not
    /// exist.
    pub fn pop(&self, name: &str) -> Result<T, QueueError> {
        let mut state = self.state();
        let queue = state.queue(name)?;
        let exists = queue.is_some();
        if let Some(value) = queue.and_then(VecDeque::pop_front) {
            self.shared.changed.notify_all();
            return Ok(value);
        }
        Err(match (state.closed, exists) {
            (true, _) => QueueError::Closed { name: name.into() },
            (false, true) => QueueError::Empty { name: name.into() },
            (false, false) => state.absent(name),
        })
    }

    /// Like [`ActivationQueue::pop`], but waits for a value if the queue is empty or does not exist yet.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// let writer = queue.clone(); // a handle to the same queues
    /// let writes = std::thread::spawn(move || writer.push("n", 7).is_ok());
    /// assert_eq!(queue.wait("n")?, 7);
    /// assert!(writes.join().is_ok_and(|done| done));
    /// # Ok::<(), hooklens_hooks::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Closed`] if the queues are closed and no value is left; [`QueueError::NoQueue`] if the name holds
    /// a single value.
    pub fn wait(&self, name: &str) -> Result<T, QueueError> {
        let mut state = self.state();
        loop {
            if let Some(value) = state.queue(name)?.and_then(VecDeque::pop_front) {
                self.shared.changed.notify_all();
                return Ok(value);
            }
            if state.closed {
                return Err(QueueError::Closed { name: name.into() });
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Number of values in a queue; `None` if there is no such queue.
    pub fn q_size(&self, name: &str) -> Option<usize> {
        self.state().queue(name).ok().flatten().map(|queue| queue.len())
    }

    /// Closes the queues. Further pushes are rejected, remaining values can still be popped, and threads waiting for
    /// more get an error.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let queue = ActivationQueue::<i32>::unbounded();
    /// queue.push("n", 1)?;
    /// queue.close();
    /// assert_eq!(queue.wait("n")?, 1); // remaining values can still be popped
    /// assert!(queue.wait("n").is_err() && queue.push("n", 2).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.state().closed = true;
        self.shared.changed.notify_all();
    }

    /// Stores a single value under a name, replacing the value or queue there.
    ///
    /// ```
    /// use hooklens_hooks::{ActivationQueue, QueueError};
    /// let cache = ActivationQueue::<i32>::unbounded();
    /// cache.push("n", 1)?;
    /// cache.set("n", 7);
    /// assert_eq!(cache.pop("n"), Err(QueueError::NoQueue { name: "n".into() }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set(&self, name: &str, value: impl Into<T>) {
        self.state().held.insert(name.to_string(), Held::Value(value.into()));
        self.shared.changed.notify_all();
    }

    /// Copies what is stored under a name: a single value, or the values of a queue, which stay in it. `None` if
    /// nothing is stored.
    ///
    /// ```
    /// use hooklens_hooks::{ActivationQueue, Stored};
    /// let cache = ActivationQueue::<i32>::unbounded();
    /// cache.push("n", 1)?;
    /// assert_eq!(cache.try_get("n"), Some(Stored::Queue(vec![1])));
    /// assert_eq!(cache.try_get("m"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_get(&self, name: &str) -> Option<Stored<T>>
    where
        T: Clone,
    {
        self.state().held.get(name).map(|held| match held {
            Held::Value(value) => Stored::Value(value.clone()),
            Held::Queue(queue) => Stored::Queue(queue.iter().cloned().collect()),
        })
    }

    /// Like [`ActivationQueue::try_get`], but returns `default` if nothing is stored under the name.
    ///
    /// ```
    /// use hooklens_hooks::ActivationQueue;
    /// let cache = ActivationQueue::<i32>::unbounded();
    /// cache.set("count", 3);
    /// assert_eq!(cache.get("count", 0), 3);
    /// assert_eq!(cache.get("other", 0), 0);
    /// cache.clear("count")?;
    /// assert_eq!(cache.get("count", 0), 0);
    /// # Ok::<(), hooklens_hooks::QueueError>(())
    /// ```
    pub fn get(&self, name: &str, default: impl Into<T>) -> Stored<T>
    where
        T: Clone,
    {
        self.try_get(name).unwrap_or_else(|| Stored::Value(default.into()))
    }

    /// Removes the value or queue stored under a name.
    ///
    /// # Errors
    /// [`QueueError::Absent`] with the nearest names, if nothing is stored under the name.
    pub fn clear(&self, name: &str) -> Result<(), QueueError> {
        let mut state = self.state();
        if state.held.remove(name).is_none() {
            return Err(state.absent(name));
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Removes all values and queues.
    pub fn clear_all(&self) {
        self.state().held.clear();
        self.shared.changed.notify_all();
    }
}

impl<T> fmt::Debug for ActivationQueue<T> {
    /// Formats names and queue lengths, but no values. The length of a single value is `None`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let size = |held: &Held<T>| match held {
            Held::Queue(queue) => Some(queue.len()),
            Held::Value(_) => None,
        };
        let mut sizes: Vec<_> = state.held.iter().map(|(name, held)| (name, size(held))).collect();
        sizes.sort();
        f.debug_map().entries(sizes).finish()
    }
}
