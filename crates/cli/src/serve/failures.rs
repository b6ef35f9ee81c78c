//! Failed connection attempts per address. Clients that guess tokens are refused for a while.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::address::network;

/// Recent failures per address.
#[derive(Debug)]
pub(super) struct Failures {
    most: u32,
    within: Duration,
    counts: HashMap<IpAddr, Count>,
}

#[derive(Debug)]
struct Count {
    failures: u32,
    since: Instant,
}

impl Failures {
    /// Refuses addresses with `most` failures within the period `within`, until the period has passed.
    pub(super) fn new(most: u32, within: Duration) -> Self {
        Self { most, within, counts: HashMap::new() }
    }

    /// Records a failure.
    pub(super) fn note(&mut self, address: IpAddr, now: Instant) {
        let within = self.within;
        self.counts.retain(|_, count| now.saturating_duration_since(count.since) < within);
        let count = self.counts.entry(network(address)).or_insert(Count { failures: 0, since: now });
        count.failures += 1;
        // The refusal period starts at the failure that triggers it.
        if count.failures == self.most {
            count.since = now;
        }
    }

    /// Whether connections from the address are refused at `now`.
    pub(super) fn refuses(&self, address: IpAddr, now: Instant) -> bool {
        let recent = |count: &&Count| now.saturating_duration_since(count.since) < self.within;
        self.counts.get(&network(address)).filter(recent).is_some_and(|count| count.failures >= self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_refused_for_a_while() {
        let (minute, start) = (Duration::from_secs(60), Instant::now());
        let mut failures = Failures::new(3, minute);
        let (one, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for second in [0, 1] {
            failures.note(one, start + Duration::from_secs(second));
            assert!(!failures.refuses(one, start + Duration::from_secs(second)));
        }
        failures.note(one, start + Duration::from_secs(50));
        assert!(failures.refuses(one, start + Duration::from_secs(109)));
        assert!(failures.refuses("::ffff:10.0.0.1".parse().unwrap(), start + minute));
        assert!(!failures.refuses(other, start + minute));
        assert!(!failures.refuses(one, start + Duration::from_secs(110)));
        // Old failures are no longer counted and take no memory.
        failures.note(other, start + 3 * minute);
        assert_eq!(failures.counts.len(), 1);
    }

    #[test]
    fn a_network_of_the_sixth_version_is_one_address() {
        let mut failures = Failures::new(2, Duration::from_secs(60));
        let now = Instant::now();
        failures.note("2001:db8::1".parse().unwrap(), now);
        failures.note("2001:db8::2".parse().unwrap(), now);
        assert!(failures.refuses("2001:db8::3".parse().unwrap(), now));
        assert!(!failures.refuses("2001:db8:0:1::3".parse().unwrap(), now));
    }
}
