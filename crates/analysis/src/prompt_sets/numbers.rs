//! The order in which combinations of words are tried.

use std::collections::HashSet;

use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// Maximum number of combinations that are listed and shuffled. If there are more, they are drawn one by one.
pub(super) const LISTED: u128 = 1 << 18;

/// Indices of combinations in random order, without repetition.
pub(super) struct Numbers {
    listed: std::vec::IntoIter<u32>,
    all: u128,
    seen: HashSet<u128>,
    /// Number of random draws so far.
    pub(super) drawn: usize,
    /// Maximum number of random draws.
    most: usize,
    random: ChaCha8Rng,
}

impl Numbers {
    pub(super) fn new(all: u128, count: usize, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut listed: Vec<u32> = if all > LISTED { Vec::new() } else { (0..all as u32).collect() };
        listed.shuffle(&mut random);
        let most = count.saturating_mul(20).saturating_add(10_000);
        Self { listed: listed.into_iter(), all, seen: HashSet::new(), drawn: 0, most, random }
    }
}

impl Iterator for Numbers {
    type Item = u128;

    fn next(&mut self) -> Option<u128> {
        if self.all <= LISTED {
            return self.listed.next().map(u128::from);
        }
        while self.drawn < self.most {
            self.drawn += 1;
            let number = self.random.random_range(0..self.all);
            if self.seen.insert(number) {
                return Some(number);
            }
        }
        None
    }
}
