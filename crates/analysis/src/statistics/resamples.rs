//! Random choices of examples, the same for every site.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Maximum number of choices kept in memory. If there are more, all are redrawn for each site.
const KEPT: usize = 1 << 24;

/// Rows of random numbers below a bound.
pub(crate) struct Resamples {
    seed: u64,
    count: usize,
    len: usize,
    below: u32,
    kept: Vec<u32>,
}

impl Resamples {
    /// Creates `count` rows of `len` numbers below `below`.
    pub(super) fn new(seed: u64, count: usize, len: usize, below: u32) -> Self {
        let mut own = Self { seed, count, len, below, kept: Vec::new() };
        if count.saturating_mul(len) <= KEPT {
            let mut kept = Vec::with_capacity(count * len);
            own.each(|row| kept.extend_from_slice(row));
            own.kept = kept;
        }
        own
    }

    /// Calls `found` with each row.
    pub(crate) fn each(&self, mut found: impl FnMut(&[u32])) {
        if !self.kept.is_empty() {
            return self.kept.chunks_exact(self.len).for_each(found);
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut row = vec![0; self.len];
        for _ in 0..self.count {
            row.iter_mut().for_each(|number| *number = random.random_range(0..self.below));
            found(&row);
        }
    }

    /// Creates resamples from given rows.
    #[cfg(test)]
    pub(super) fn of_rows(rows: &[Vec<u32>]) -> Self {
        let len = rows.first().map_or(0, Vec::len);
        Self { seed: 0, count: rows.len(), len, below: 0, kept: rows.concat() }
    }
}
