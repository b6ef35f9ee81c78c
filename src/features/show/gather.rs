//! What is kept of a unit's activations while they go by: sums, a histogram, its largest and a sample of the others, each
//! with its surroundings. Memory does not grow with the tokens.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::histogram::Histogram;

/// Bins of a histogram that is shown.
pub(super) const BINS: usize = 50;
/// Intervals of which examples are kept.
pub(super) const INTERVALS: usize = 8;

/// One place where a unit is active, with its activations around it.
#[derive(Debug, Clone)]
pub(super) struct Example {
    pub(super) value: f32,
    pub(super) prompt: u32,
    pub(super) pos: u32,
    /// Activations of the window, whose first is at `first`.
    pub(super) first: u32,
    pub(super) acts: Vec<f32>,
}

/// How many examples are kept, and of which length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount {
    pub(super) largest: usize,
    pub(super) each_interval: usize,
    /// Tokens before an active one, and behind it.
    pub(super) around: [usize; 2],
}

/// A unit's statistics.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    pub(super) active: u64,
    pub(super) sum: f64,
    pub(super) square: f64,
    /// The largest magnitude, with its sign.
    pub(super) most: f32,
    pub(super) histogram: Histogram<BINS>,
    /// Largest magnitude first, one a prompt.
    pub(super) largest: Vec<Example>,
    intervals: Histogram<INTERVALS>,
    samples: [Vec<Example>; INTERVALS],
}

impl Gathered {
    /// Notes one activation other than zero. `window` makes the example of it if it is kept.
    pub(super) fn add(
        &mut self,
        (value, prompt): (f32, u32),
        amount: Amount,
        random: &mut ChaCha8Rng,
        window: impl Fn() -> Example,
    ) {
        self.active += 1;
        self.sum += f64::from(value);
        self.square += f64::from(value) * f64::from(value);
        if value.abs() > self.most.abs() {
            self.most = value;
        }
        self.histogram.add(value);
        self.keep_largest(value, prompt, amount.largest, &window);
        self.sample(value, amount.each_interval, random, &window);
    }

    fn keep_largest(&mut self, value: f32, prompt: u32, count: usize, window: &impl Fn() -> Example) {
        let full = self.largest.len() >= count;
        if full && self.largest.last().is_none_or(|least| value.abs() <= least.value.abs()) {
            return;
        }
        // Of a prompt the largest alone: windows would show the same text again.
        match self.largest.iter().position(|other| other.prompt == prompt) {
            Some(same) if self.largest[same].value.abs() >= value.abs() => return,
            Some(same) => drop(self.largest.remove(same)),
            None if full => drop(self.largest.pop()),
            None => {}
        }
        let at = self.largest.partition_point(|other| other.value.abs() >= value.abs());
        self.largest.insert(at, window());
    }

    /// Keeps a sample of each interval, in which every activation has the same chance.
    fn sample(&mut self, value: f32, count: usize, random: &mut ChaCha8Rng, window: &impl Fn() -> Example) {
        for _ in 0..self.intervals.reach(value.abs()) {
            for bin in 0..INTERVALS {
                let mut joined = Vec::new();
                for from in [2 * bin, 2 * bin + 1] {
                    joined.append(self.samples.get_mut(from).unwrap_or(&mut Vec::new()));
                }
                while joined.len() > count {
                    joined.swap_remove(random.random_range(0..joined.len()));
                }
                self.samples[bin] = joined;
            }
        }
        self.intervals.add(value);
        let bin = ((value.abs() / self.intervals.limit * INTERVALS as f32) as usize).min(INTERVALS - 1);
        let (seen, own) = (self.intervals.counts[bin], &mut self.samples[bin]);
        if own.len() < count {
            own.push(window());
        } else if count > 0 {
            let place = random.random_range(0..seen as usize);
            if place < count {
                own[place] = window();
            }
        }
    }

    /// Intervals with examples, the highest first: bounds, the share of active tokens, examples.
    pub(super) fn intervals(&self) -> impl Iterator<Item = ([f32; 2], f64, &[Example])> {
        let width = self.intervals.limit / INTERVALS as f32;
        let all = (0..INTERVALS).rev().filter(|bin| self.intervals.counts[*bin] > 0);
        all.map(move |bin| {
            let bounds = [bin as f32 * width, (bin + 1) as f32 * width];
            (bounds, f64::from(self.intervals.counts[bin]) / self.active as f64, &self.samples[bin][..])
        })
    }
}
