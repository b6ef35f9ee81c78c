//! A bounded number of slots with a limit per address, so that one address can't take them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::address::network;

/// Slots and who holds them.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    of_address: usize,
    /// Number of slots held, by address. Addresses without slots have no entry.
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// A held slot. Freed on drop.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>, IpAddr);

impl Places {
    /// Creates `most` slots, of which one address may hold at most `of_address`.
    pub(super) fn new(most: usize, of_address: usize) -> Arc<Self> {
        Arc::new(Self { most, of_address, taken: Mutex::default() })
    }

    /// Takes a slot, if the address may have one and one is free.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&address).copied().unwrap_or(0);
        if own >= self.of_address || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(address, own + 1);
        Some(Place(Arc::clone(self), address))
    }

    /// Whether all slots are taken.
    pub(super) fn full(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).values().sum::<usize>() >= self.most
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.1) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_free_again() {
        let (places, here) = (Places::new(2, 2), "10.0.0.1".parse().unwrap());
        let (one, two) = (places.take(here), places.take(here));
        assert!(one.is_some() && two.is_some() && places.full() && places.take(here).is_none());
        drop(one);
        assert!(!places.full() && places.take(here).is_some());
    }

    #[test]
    fn one_address_leaves_places_to_others() {
        let [one, other] = ["2001:db8::1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let places = Places::new(3, 2);
        let mut taken = vec![places.take(one).unwrap(), places.take("2001:db8::2".parse().unwrap()).unwrap()];
        assert!(places.take(one).is_none() && places.take("2001:db8::3".parse().unwrap()).is_none());
        taken.push(places.take(other).unwrap());
        assert!(places.take(other).is_none());
        taken.clear();
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
