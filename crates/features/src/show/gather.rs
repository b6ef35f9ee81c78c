//! What is kept of a unit's activations while they go by: sums, a histogram, its largest and a sample of the others, each
//! with its surroundings. Memory does not grow with the tokens.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::histogram::Histogram;

/// Bins of a histogram that is shown, on either side of 0.
pub(super) const BINS: usize = 50;
/// Intervals of which examples are kept, on either side of 0.
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
    /// Numbers other than zero, and those above it.
    pub(super) nonzero: u64,
    pub(super) positive: u64,
    pub(super) sum: f64,
    pub(super) square: f64,
    /// The largest magnitude, with its sign, and the largest number above zero.
    pub(super) most: f32,
    pub(super) highest: f32,
    pub(super) histogram: Histogram<BINS>,
    /// Above zero, the largest first, one a prompt.
    pub(super) largest: Vec<Example>,
    /// Below zero, the least first, one a prompt.
    pub(super) least: Vec<Example>,
    intervals: Histogram<INTERVALS>,
    samples: [Vec<Example>; INTERVALS],
    /// Of intervals below zero, the nearest first; nothing as long as there is none.
    below: Vec<Vec<Example>>,
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
        self.nonzero += 1;
        self.positive += u64::from(value > 0.0);
        self.sum += f64::from(value);
        self.square += f64::from(value) * f64::from(value);
        if value.abs() > self.most.abs() {
            self.most = value;
        }
        self.highest = self.highest.max(value);
        self.histogram.add(value);
        let kept = if value > 0.0 { &mut self.largest } else { &mut self.least };
        keep_largest(kept, (value, prompt), amount.largest, &window);
        self.sample(value, amount.each_interval, random, &window);
    }

    /// Keeps a sample of each interval, in which every activation has the same chance.
    fn sample(&mut self, value: f32, count: usize, random: &mut ChaCha8Rng, window: &impl Fn() -> Example) {
        for _ in 0..self.intervals.reach(value.abs()) {
            for samples in [&mut self.samples[..], &mut self.below[..]] {
                for bin in 0..samples.len() {
                    let mut joined = Vec::new();
                    for from in [2 * bin, 2 * bin + 1] {
                        joined.append(samples.get_mut(from).unwrap_or(&mut Vec::new()));
                    }
                    while joined.len() > count {
                        joined.swap_remove(random.random_range(0..joined.len()));
                    }
                    samples[bin] = joined;
                }
            }
        }
        let (seen, bin) = (self.intervals.add(value), self.intervals.bin(value));
        if value < 0.0 {
            self.below.resize(INTERVALS, Vec::new());
        }
        let own = if value < 0.0 { &mut self.below[bin] } else { &mut self.samples[bin] };
        if own.len() < count {
            own.push(window());
        } else if count > 0 {
            let place = random.random_range(0..seen as usize);
            if place < count {
                own[place] = window();
            }
        }
    }

    /// Intervals with examples, the highest first: bounds, the share of numbers other than zero, examples.
    pub(super) fn intervals(&self) -> impl Iterator<Item = ([f32; 2], f64, &[Example])> {
        let width = self.intervals.limit / INTERVALS as f32;
        let bounds = move |bin: usize| [bin as f32 * width, (bin + 1) as f32 * width];
        let above = (0..INTERVALS).rev().map(move |bin| (bounds(bin), self.intervals.counts[bin], &self.samples[bin]));
        let below = self.intervals.below.iter().zip(&self.below).enumerate();
        let below = below.map(move |(bin, (count, samples))| {
            let [near, far] = bounds(bin);
            ([-far, -near], *count, samples)
        });
        let all = above.chain(below).filter(|(_, count, _)| *count > 0);
        all.map(|(bounds, count, samples)| (bounds, f64::from(count) / self.nonzero as f64, &samples[..]))
    }
}

/// Keeps an example if its magnitude is among the largest.
fn keep_largest(kept: &mut Vec<Example>, (value, prompt): (f32, u32), count: usize, window: &impl Fn() -> Example) {
    let full = kept.len() >= count;
    if full && kept.last().is_none_or(|least| value.abs() <= least.value.abs()) {
        return;
    }
    // Of a prompt the largest alone: windows would show the same text again.
    match kept.iter().position(|other| other.prompt == prompt) {
        Some(same) if kept[same].value.abs() >= value.abs() => return,
        Some(same) => drop(kept.remove(same)),
        None if full => drop(kept.pop()),
        None => {}
    }
    let at = kept.partition_point(|other| other.value.abs() >= value.abs());
    kept.insert(at, window());
}
