//! Counts of numbers whose range is not known before: the range doubles when a number lies beyond it.

/// Bins of equal width from 0 to a limit, for numbers of one sign.
#[derive(Debug, Clone)]
pub(super) struct Histogram<const BINS: usize> {
    pub(super) limit: f32,
    pub(super) counts: [u32; BINS],
}

impl<const BINS: usize> Default for Histogram<BINS> {
    fn default() -> Self {
        Self { limit: 0.0, counts: [0; BINS] }
    }
}

impl<const BINS: usize> Histogram<BINS> {
    /// Counts a number's magnitude.
    pub(super) fn add(&mut self, value: f32) {
        let value = value.abs();
        self.reach(value);
        let bin = (value / self.limit * BINS as f32) as usize;
        self.counts[bin.min(BINS - 1)] += 1;
    }

    /// Widens the range until a magnitude is within; tells how many times it doubled.
    pub(super) fn reach(&mut self, value: f32) -> usize {
        if self.limit == 0.0 {
            self.limit = value.max(f32::MIN_POSITIVE);
        }
        let mut doubled = 0;
        while value > self.limit && self.limit.is_finite() {
            self.limit *= 2.0;
            doubled += 1;
            for bin in 0..BINS {
                let pair = |at: usize| self.counts.get(at).copied().unwrap_or(0);
                self.counts[bin] = if 2 * bin < BINS { pair(2 * bin) + pair(2 * bin + 1) } else { 0 };
            }
        }
        doubled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_counted_where_it_lies() {
        let mut all = Histogram::<10>::default();
        let numbers = [1.0, 0.5, -0.2, 3.0, 7.9, 0.0, 100.0];
        numbers.iter().for_each(|x| all.add(*x));
        assert_eq!(all.limit, 128.0);
        assert_eq!(all.counts.iter().sum::<u32>(), 7);
        assert_eq!((all.counts[0], all.counts[7]), (6, 1));
    }
}
