//! [`Histogram`] of numbers of unknown range: the range doubles when a number exceeds it.

/// `BINS` bins of equal width from 0 up to a limit, and as many from 0 down to the negative limit.
#[derive(Debug, Clone)]
pub(super) struct Histogram<const BINS: usize> {
    pub(super) limit: f32,
    /// Counts of numbers at or above 0.
    pub(super) counts: [u32; BINS],
    /// Counts of negative numbers, nearest to zero first; empty until there is a negative number.
    pub(super) below: Vec<u32>,
}

impl<const BINS: usize> Default for Histogram<BINS> {
    fn default() -> Self {
        Self { limit: 0.0, counts: [0; BINS], below: Vec::new() }
    }
}

impl<const BINS: usize> Histogram<BINS> {
    /// Adds a number, and returns the new count of its bin.
    pub(super) fn add(&mut self, value: f32) -> u32 {
        self.reach(value.abs());
        let bin = self.bin(value);
        if value < 0.0 {
            self.below.resize(BINS, 0);
        }
        let own = if value < 0.0 { &mut self.below[bin] } else { &mut self.counts[bin] };
        *own += 1;
        *own
    }

    /// Index of the bin of a number within the range, among the bins with the same sign.
    pub(super) fn bin(&self, value: f32) -> usize {
        ((value.abs() / self.limit * BINS as f32) as usize).min(BINS - 1)
    }

    /// Doubles the range until it includes a magnitude, and returns the number of doublings.
    pub(super) fn reach(&mut self, size: f32) -> usize {
        if self.limit == 0.0 {
            self.limit = size.max(f32::MIN_POSITIVE);
        }
        let mut doubled = 0;
        while size > self.limit && self.limit.is_finite() {
            self.limit *= 2.0;
            doubled += 1;
            for counts in [&mut self.counts[..], &mut self.below[..]] {
                for bin in 0..counts.len() {
                    let pair = |at: usize| counts.get(at).copied().unwrap_or(0);
                    counts[bin] = if 2 * bin < BINS { pair(2 * bin) + pair(2 * bin + 1) } else { 0 };
                }
            }
        }
        doubled
    }

    /// The range of nonempty bins, extended to include 0, and the counts of its bins.
    pub(super) fn range(&self) -> ([f32; 2], Vec<u32>) {
        let width = self.limit / BINS as f32;
        let used = |counts: &[u32]| counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let [low, high] = [used(&self.below), used(&self.counts)];
        let counts = self.below[..low].iter().rev().chain(&self.counts[..high]).copied().collect();
        ([-(low as f32) * width, high as f32 * width], counts)
    }

    /// Estimated number of positive numbers of at least this size, interpolated within a bin.
    pub(super) fn at_least(&self, least: f32) -> f64 {
        let place = f64::from(least / self.limit) * BINS as f64;
        let share = |bin: usize| (bin as f64 + 1.0 - place).clamp(0.0, 1.0);
        self.counts.iter().enumerate().map(|(bin, count)| f64::from(*count) * share(bin)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_counted_where_it_lies() {
        let mut all = Histogram::<10>::default();
        let numbers = [1.0, 0.5, -0.2, 3.0, 7.9, 0.0, 100.0, -40.0];
        for x in numbers {
            all.add(x);
        }
        assert_eq!(all.limit, 128.0);
        assert_eq!((all.counts[0], all.counts[7]), (5, 1));
        assert_eq!((all.below[0], all.below[3]), (1, 1));
        let ([from, to], counts) = all.range();
        assert_eq!((from, to), (-4.0 * 12.8, 8.0 * 12.8));
        assert_eq!(counts, [1, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 1]);
        assert!((all.at_least(50.0) - 1.0).abs() < 1e-6 && (all.at_least(6.4) - 3.5).abs() < 1e-6);
    }
}
