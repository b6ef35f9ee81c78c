//! Bootstrap intervals of a mean.

use statrs::distribution::{ContinuousCDF, Normal};

use super::resamples::Resamples;
use super::{Interval, Statistics, mean};
use crate::error::StatisticsError;

impl Statistics {
    /// Creates the bootstrap resamples of this many examples.
    pub(crate) fn bootstrap_resamples(&self, examples: usize) -> Resamples {
        Resamples::new(self.seed, self.resamples, examples, u32::try_from(examples).unwrap_or(u32::MAX))
    }

    /// Bootstrap interval of the mean of `effects`, which must be finite.
    pub(super) fn bootstrap(&self, effects: &[f64], resamples: &Resamples) -> Interval {
        let mut means = Vec::with_capacity(self.resamples);
        let count = effects.len() as f64;
        resamples.each(|row| means.push(row.iter().map(|example| effects[*example as usize]).sum::<f64>() / count));
        let mean = mean(effects);
        // Leaving out an example changes the mean in proportion to the example's distance from the mean.
        self.bounds(mean, || effects.iter().map(|effect| effect - mean).collect(), means)
    }

    /// Bootstrap interval of a statistic of examples, which is computed from the indices of the resampled examples.
    /// Resamples for which the statistic is not finite are left out.
    ///
    /// ```
    /// use hooklens::statistics::Statistics;
    /// let values = [3.0_f64, 1.0, 2.0, 5.0];
    /// let largest = |chosen: &[u32]| chosen.iter().map(|example| values[*example as usize]).fold(0.0, f64::max);
    /// assert_eq!(Statistics::new().interval_of(4, largest)?.high, 5.0);
    /// # Ok::<(), hooklens::statistics::StatisticsError>(())
    /// ```
    ///
    /// # Errors
    /// [`StatisticsError::TooFew`] for fewer than 2 examples, [`StatisticsError::Confidence`], and
    /// [`StatisticsError::Undefined`] if the statistic of all examples is not finite.
    pub fn interval_of(&self, examples: usize, statistic: impl Fn(&[u32]) -> f64) -> Result<Interval, StatisticsError> {
        self.check_count(examples)?;
        let mut values = Vec::with_capacity(self.resamples);
        self.bootstrap_resamples(examples).each(|row| values.push(statistic(row)));
        values.retain(|value| value.is_finite());
        let all: Vec<u32> = (0..examples as u32).collect();
        let value = statistic(&all);
        if !value.is_finite() || values.is_empty() {
            return Err(StatisticsError::Undefined { value });
        }
        let gaps = || {
            let without = |left_out: &u32| {
                let others: Vec<u32> = all.iter().copied().filter(|example| example != left_out).collect();
                statistic(&others)
            };
            let jackknife: Vec<f64> = all.iter().map(without).collect();
            let center = mean(&jackknife);
            jackknife.iter().map(|own| center - own).filter(|gap| gap.is_finite()).collect()
        };
        Ok(self.bounds(value, gaps, values))
    }

    /// Interval of a statistic with this value, from its values for resampled examples. A bias-corrected interval also
    /// uses `gaps`, which are proportional to how much each example raises the statistic.
    fn bounds(&self, value: f64, gaps: impl FnOnce() -> Vec<f64>, mut resampled: Vec<f64>) -> Interval {
        resampled.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - self.confidence) / 2.0;
        let tails = if self.bias_corrected { corrected(value, &gaps(), &resampled, tail) } else { [tail, 1.0 - tail] };
        let [low, high] = tails.map(|share| quantile(&resampled, share));
        Interval { low, high }
    }
}

/// Quantile of sorted values, interpolated linearly (as NumPy and torch do by default).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Fractions of the resampled values below the bounds of a BCa interval (Efron 1987, equation 6.8; acceleration by
/// jackknife). `gaps` are proportional to how much each example raises the statistic `value`.
fn corrected(value: f64, gaps: &[f64], resampled: &[f64], tail: f64) -> [f64; 2] {
    let normal = Normal::standard();
    // The resampled values are sorted. Values equal to `value` count half.
    let [less, at_most] =
        [resampled.partition_point(|one| *one < value), resampled.partition_point(|one| *one <= value)];
    let below = (less + at_most) as f64 / 2.0;
    // The normal quantile of 0 or 1 is infinite.
    let least = 0.5 / resampled.len() as f64;
    let bias = normal.inverse_cdf((below / resampled.len() as f64).clamp(least, 1.0 - least));
    let (squares, cubes) =
        gaps.iter().fold((0.0, 0.0), |(squares, cubes), gap| (squares + gap * gap, cubes + gap.powi(3)));
    let acceleration = if squares > 0.0 { cubes / (6.0 * f64::powf(squares, 1.5)) } else { 0.0 };
    [tail, 1.0 - tail].map(|share| {
        let moved = bias + normal.inverse_cdf(share);
        normal.cdf(bias + moved / (1.0 - acceleration * moved)).clamp(0.0, 1.0)
    })
}
