//! A bounded number of places.

use std::sync::{Arc, Mutex, PoisonError};

/// How many of so many places are taken.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<usize>,
}

/// One that is taken, until dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::new(0) })
    }

    /// Takes a place, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if *taken == self.most {
            return None;
        }
        *taken += 1;
        Some(Place(Arc::clone(self)))
    }

    /// Whether none is free.
    pub(super) fn full(&self) -> bool {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) == self.most
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_free_again() {
        let places = Places::new(2);
        let (one, two) = (places.take(), places.take());
        assert!(one.is_some() && two.is_some() && places.full() && places.take().is_none());
        drop(one);
        assert!(!places.full() && places.take().is_some());
    }
}
