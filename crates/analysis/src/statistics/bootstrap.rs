//! Bootstrap intervals of a mean.

use statrs::distribution::{ContinuousCDF, Normal};

use super::resamples::Resamples;
use super::{Interval, Statistics, mean};

impl Statistics {
    /// Resamples of this many examples.
    pub(super) fn bootstrap_resamples(&self, examples: usize) -> Resamples {
        Resamples::new(self.seed, self.resamples, examples, u32::try_from(examples).unwrap_or(u32::MAX))
    }

    /// Interval of the mean of finite effects.
    pub(super) fn bootstrap(&self, effects: &[f64], resamples: &Resamples) -> Interval {
        let mut means = Vec::with_capacity(self.resamples);
        let count = effects.len() as f64;
        resamples.each(|row| means.push(row.iter().map(|example| effects[*example as usize]).sum::<f64>() / count));
        means.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - self.confidence) / 2.0;
        let tails = if self.bias_corrected { corrected(effects, &means, tail) } else { [tail, 1.0 - tail] };
        let [low, high] = tails.map(|share| quantile(&means, share));
        Interval { low, high }
    }
}

/// Quantile of sorted values, interpolated linearly (as NumPy and torch do by default).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Shares of the resampled means below the bounds of a BCa interval (Efron 1987, equation 6.8; acceleration by jackknife).
fn corrected(effects: &[f64], means: &[f64], tail: f64) -> [f64; 2] {
    let normal = Normal::standard();
    let mean = mean(effects);
    // The means are sorted. Those that are equal count half.
    let [less, at_most] = [means.partition_point(|one| *one < mean), means.partition_point(|one| *one <= mean)];
    let below = (less + at_most) as f64 / 2.0;
    // A share of 0 or 1 would be infinitely far from the center.
    let least = 0.5 / means.len() as f64;
    let bias = normal.inverse_cdf((below / means.len() as f64).clamp(least, 1.0 - least));
    // Leaving out an example changes the mean in proportion to the example's distance from it.
    let gaps = effects.iter().map(|effect| effect - mean);
    let (squares, cubes) = gaps.fold((0.0, 0.0), |(squares, cubes), gap| (squares + gap * gap, cubes + gap.powi(3)));
    let acceleration = if squares > 0.0 { cubes / (6.0 * f64::powf(squares, 1.5)) } else { 0.0 };
    [tail, 1.0 - tail].map(|share| {
        let moved = bias + normal.inverse_cdf(share);
        normal.cdf(bias + moved / (1.0 - acceleration * moved)).clamp(0.0, 1.0)
    })
}
