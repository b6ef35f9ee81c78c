//! Statistics of a unit's activations, collected in one pass: sums, a histogram, the largest activations, and a sample
//! of the others, each with its context. Memory does not grow with the number of tokens.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::histogram::Histogram;

/// Number of histogram bins shown on either side of 0.
pub(super) const BINS: usize = 50;
/// Number of intervals on each side of 0; examples are sampled from each interval.
pub(super) const INTERVALS: usize = 8;

/// A place where a unit is active, with the activations around it.
#[derive(Debug, Clone)]
pub(super) struct Example {
    pub(super) value: f32,
    pub(super) prompt: u32,
    pub(super) pos: u32,
    /// Position of the window's first token.
    pub(super) first: u32,
    /// Tokens of the window.
    pub(super) tokens: Vec<u32>,
    /// The unit's activations at the window's tokens.
    pub(super) acts: Vec<f32>,
}

impl Example {
    /// The tokens of the window, and the index of the active one.
    pub(super) fn context(&self) -> (&[u32], usize) {
        (&self.tokens, (self.pos - self.first) as usize)
    }
}

/// Number of examples to keep, and the size of their window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount {
    pub(super) largest: usize,
    pub(super) each_interval: usize,
    /// Number of tokens before and after the active one.
    pub(super) around: [usize; 2],
}

/// Statistics of a unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    /// Number of nonzero activations.
    pub(super) nonzero: u64,
    /// Number of positive activations.
    pub(super) positive: u64,
    pub(super) sum: f64,
    pub(super) square: f64,
    /// The activation with the largest magnitude, with its sign.
    pub(super) most: f32,
    /// The largest positive activation.
    pub(super) highest: f32,
    /// The negative activation with the largest magnitude.
    lowest: f32,
    pub(super) histogram: Histogram<BINS>,
    /// Positive activations in descending order, at most one per prompt.
    pub(super) largest: Vec<Example>,
    /// Negative activations in ascending order, at most one per prompt.
    pub(super) least: Vec<Example>,
    intervals: Histogram<INTERVALS>,
    samples: [Vec<Example>; INTERVALS],
    /// Samples of intervals below zero, nearest to zero first; empty until there is a negative activation.
    below: Vec<Vec<Example>>,
}

impl Gathered {
    /// Adds a nonzero activation. Calls `window` to create its example if the activation is kept.
    pub(super) fn add(
        &mut self,
        (value, prompt): (f32, u32),
        amount: Amount,
        random: &mut ChaCha8Rng,
        window: impl Fn() -> Example,
        is_repeat: impl Fn(&Example, &Example) -> bool,
    ) {
        self.nonzero += 1;
        self.positive += u64::from(value > 0.0);
        self.sum += f64::from(value);
        self.square += f64::from(value) * f64::from(value);
        if value.abs() > self.most.abs() {
            self.most = value;
        }
        self.highest = self.highest.max(value);
        self.lowest = self.lowest.min(value);
        self.histogram.add(value);
        let kept = if value > 0.0 { &mut self.largest } else { &mut self.least };
        keep_largest(kept, (value, prompt), amount.largest, &window, is_repeat);
        self.sample(value, amount.each_interval, random, &window);
    }

    /// Adds an activation to the sample of its interval. Every activation has the same chance of being kept.
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

    /// All examples.
    pub(super) fn examples(&self) -> impl Iterator<Item = &Example> {
        self.largest.iter().chain(&self.least).chain(self.samples.iter().chain(&self.below).flatten())
    }

    /// The intervals with examples, highest first: bounds, fraction of nonzero activations, and examples.
    pub(super) fn intervals(&self) -> impl Iterator<Item = ([f32; 2], f64, &[Example])> {
        let width = self.intervals.limit / INTERVALS as f32;
        // The range may extend beyond the largest activation.
        let (highest, lowest) = (self.highest, self.lowest);
        let bounds = move |bin: usize, most: f32| [bin as f32 * width, ((bin + 1) as f32 * width).min(most)];
        let above =
            (0..INTERVALS).rev().map(move |bin| (bounds(bin, highest), self.intervals.counts[bin], &self.samples[bin]));
        let below = self.intervals.below.iter().zip(&self.below).enumerate();
        let below = below.map(move |(bin, (count, samples))| {
            let [near, far] = bounds(bin, -lowest);
            ([-far, -near], *count, samples)
        });
        let all = above.chain(below).filter(|(_, count, _)| *count > 0);
        all.map(|(bounds, count, samples)| (bounds, f64::from(count) / self.nonzero as f64, &samples[..]))
    }
}

/// Inserts an example if the magnitude of its activation is among the largest.
fn keep_largest(
    kept: &mut Vec<Example>,
    (value, prompt): (f32, u32),
    count: usize,
    window: &impl Fn() -> Example,
    is_repeat: impl Fn(&Example, &Example) -> bool,
) {
    let full = kept.len() >= count;
    if full && kept.last().is_none_or(|least| value.abs() <= least.value.abs()) {
        return;
    }
    if kept.iter().any(|other| other.prompt == prompt && other.value.abs() >= value.abs()) {
        return;
    }
    // Keep only the largest activation per prompt and per group of near-identical contexts, because the others would
    // show the same text again.
    let example = window();
    let repeats = |other: &Example| other.prompt == prompt || is_repeat(other, &example);
    if kept.iter().any(|other| repeats(other) && other.value.abs() >= value.abs()) {
        return;
    }
    kept.retain(|other| !repeats(other));
    kept.truncate(count - 1);
    let at = kept.partition_point(|other| other.value.abs() >= value.abs());
    kept.insert(at, example);
}
