//! Uncertainty of effects over examples: intervals, p-values and corrections that assume no distribution.

mod bootstrap;
mod correction;
mod effects;
mod moments;
mod resamples;
mod sign_flip;
mod success_rate;

use crate::error::StatisticsError;

pub use correction::benjamini_hochberg;
pub use effects::EffectStatistics;
pub(crate) use moments::{mean, standard_error};
pub use success_rate::success_rate_interval;

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Interval {
    /// Whether a value is within the bounds.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Settings of bootstrap intervals and permutation tests. The same seed gives the same numbers.
///
/// ```
/// use hooklens::statistics::Statistics;
/// let effects = [0.9, 1.1, 1.4, 0.7, 1.2, 0.8, 1.0, 1.3];
/// let interval = Statistics::new().interval(&effects)?;
/// assert!(interval.contains(1.05) && !interval.contains(0.0));
/// // Of the 256 ways to flip signs, two have a mean as far from zero.
/// assert_eq!(Statistics::new().p_value(&effects)?, 2.0 / 256.0);
/// # Ok::<(), hooklens::statistics::StatisticsError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Statistics {
    resamples: usize,
    permutations: usize,
    pub(crate) confidence: f64,
    pub(crate) seed: u64,
    bias_corrected: bool,
}

impl Default for Statistics {
    fn default() -> Self {
        Self { resamples: 1000, permutations: 1000, confidence: 0.95, seed: 0, bias_corrected: false }
    }
}

impl Statistics {
    /// Creates the default settings: 95 % percentile intervals from 1,000 resamples, p-values from 1,000 permutations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of bootstrap resamples.
    pub fn resamples(mut self, count: usize) -> Self {
        self.resamples = count.max(1);
        self
    }

    /// Sets the number of random sign flips of a permutation test. For up to 12 examples, all sign flips
    /// are enumerated instead.
    pub fn permutations(mut self, count: usize) -> Self {
        self.permutations = count.max(1);
        self
    }

    /// Sets the confidence of intervals, between 0 and 1.
    pub fn confidence(mut self, confidence: f64) -> Self {
        self.confidence = confidence;
        self
    }

    /// Sets the random seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Computes bias-corrected and accelerated (BCa) intervals instead of percentile intervals. For skewed effects,
    /// the actual coverage of BCa intervals is closer to the nominal confidence (Efron 1987).
    pub fn bias_corrected(mut self) -> Self {
        self.bias_corrected = true;
        self
    }

    /// Bootstrap interval of the mean of the effects.
    ///
    /// # Errors
    /// [`StatisticsError::TooFew`] for fewer than 2 effects, [`StatisticsError::NotFinite`],
    /// [`StatisticsError::Confidence`].
    pub fn interval(&self, effects: &[f64]) -> Result<Interval, StatisticsError> {
        self.check(effects)?;
        Ok(self.bootstrap(effects, &self.bootstrap_resamples(effects.len())))
    }

    /// Two-sided p-value of the hypothesis that effects are symmetric around zero, computed by flipping their signs.
    /// Exact for up to 12 effects. For more effects, it is `(hits + 1) / (permutations + 1)`, where `hits` is the
    /// number of random flips whose mean is at least as far from zero as the observed mean.
    ///
    /// # Errors
    /// Same as [`Statistics::interval`].
    pub fn p_value(&self, effects: &[f64]) -> Result<f64, StatisticsError> {
        self.check(effects)?;
        Ok(self.sign_flips(effects, &self.flips(effects.len())))
    }

    fn check(&self, effects: &[f64]) -> Result<(), StatisticsError> {
        self.check_count(effects.len())?;
        match effects.iter().position(|effect| !effect.is_finite()) {
            Some(example) => Err(StatisticsError::NotFinite { example, value: effects[example], place: String::new() }),
            None => Ok(()),
        }
    }

    fn check_count(&self, given: usize) -> Result<(), StatisticsError> {
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Err(StatisticsError::Confidence { given: self.confidence });
        }
        match given {
            0 | 1 => Err(StatisticsError::TooFew { what: "an interval or a p-value", least: 2, given }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use serde::Deserialize;

    use super::resamples::Resamples;
    use super::*;

    /// Results of TransformerLens 4.3, with the random choices that it made (tests/reference/statistics.py).
    #[derive(Deserialize)]
    struct Golden {
        intervals: Vec<GoldenInterval>,
        tests: Vec<GoldenTest>,
        rates: Vec<(u64, u64, f64, f64, f64)>,
    }

    #[derive(Deserialize)]
    struct GoldenInterval {
        effects: Vec<f64>,
        choices: Vec<Vec<u32>>,
        confidence: f64,
        low: f64,
        high: f64,
    }

    #[derive(Deserialize)]
    struct GoldenTest {
        effects: Vec<f64>,
        signs: Vec<Vec<u32>>,
        p_value: f64,
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * a.abs().max(1.0)
    }

    #[test]
    fn intervals_and_p_values_are_those_of_transformer_lens() {
        let golden: Golden = serde_json::from_str(include_str!("../../../../tests/fixtures/statistics.json")).unwrap();
        for GoldenInterval { effects, choices, confidence, low, high } in golden.intervals {
            let found = Statistics::new().confidence(confidence).bootstrap(&effects, &Resamples::of_rows(&choices));
            assert!(close(found.low, low) && close(found.high, high), "{found:?}, {low} to {high}");
        }
        for GoldenTest { effects, signs, p_value } in golden.tests {
            let found = Statistics::new().sign_flips(&effects, &Resamples::of_rows(&signs));
            assert!(close(found, p_value), "{found}, {p_value}");
        }
        for (successes, trials, confidence, low, high) in golden.rates {
            let found = success_rate_interval(successes, trials, confidence).unwrap();
            assert!(close(found.low, low) && close(found.high, high), "{found:?}, {low} to {high}");
        }
    }

    /// Sum of 12 uniform numbers, minus its mean: nearly normal, with a variance of one.
    fn normal(random: &mut ChaCha8Rng) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    /// 95 % intervals contain the mean in 93 to 97 % of 2,000 data sets.
    #[test]
    fn intervals_have_their_confidence() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut hits = [0; 2];
        for seed in 0..2000 {
            let effects: Vec<f64> = (0..60).map(|_| 0.4 + normal(&mut random)).collect();
            let settings = Statistics::new().resamples(400).seed(seed);
            for (hits, settings) in hits.iter_mut().zip([settings.clone(), settings.bias_corrected()]) {
                *hits += usize::from(settings.interval(&effects).unwrap().contains(0.4));
            }
        }
        assert!(hits.iter().all(|hits| (1860..=1940).contains(hits)), "{hits:?}");
    }

    /// For skewed effects, BCa intervals divide their misses more evenly between above and below than percentile
    /// intervals do.
    #[test]
    fn bias_corrected_intervals_follow_skew() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let effects: Vec<f64> = (0..40).map(|_| -random.random::<f64>().ln()).collect();
        let settings = Statistics::new().resamples(4000);
        let (percentile, corrected) =
            (settings.clone().interval(&effects).unwrap(), settings.bias_corrected().interval(&effects).unwrap());
        assert!(corrected.low > percentile.low && corrected.high > percentile.high, "{percentile:?}, {corrected:?}");
        let constant = Statistics::new().bias_corrected().interval(&[0.5; 4]).unwrap();
        assert_eq!((constant.low, constant.high), (0.5, 0.5));
    }

    /// p-values of effects around zero are uniform (Kolmogorov-Smirnov, 1 % level).
    #[test]
    fn p_values_of_no_effect_are_uniform() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for examples in [12, 20] {
            let mut found: Vec<f64> = (0..1000)
                .map(|seed| {
                    let effects: Vec<f64> = (0..examples).map(|_| normal(&mut random)).collect();
                    Statistics::new().permutations(999).seed(seed).p_value(&effects).unwrap()
                })
                .collect();
            found.sort_unstable_by(f64::total_cmp);
            let gap =
                |(rank, p): (usize, &f64)| (p - rank as f64 / 1000.0).abs().max((p - (rank + 1) as f64 / 1000.0).abs());
            let largest = found.iter().enumerate().map(gap).fold(0.0, f64::max);
            assert!(largest < 1.63 / 1000f64.sqrt(), "{examples} examples: {largest}");
        }
    }

    #[test]
    fn bad_input_is_named() {
        let message = |error: StatisticsError| error.to_string();
        let settings = Statistics::new();
        assert!(message(settings.interval(&[1.0]).unwrap_err()).contains("at least 2 examples, but there are 1"));
        assert!(message(settings.p_value(&[1.0, f64::NAN]).unwrap_err()).contains("example 1 is NaN"));
        let axes = [
            crate::labeled::LabeledAxis::new("head", ["L0H0", "L0H1"]),
            crate::labeled::LabeledAxis::numbered("example", 2),
        ];
        let values = ndarray::arr2(&[[1.0, 2.0], [f64::INFINITY, 0.0]]).into_dyn();
        let effects = crate::labeled::LabeledArray::new(axes, values).unwrap();
        assert!(message(settings.effects(&effects).unwrap_err()).contains("example 0 at L0H1 is inf"));
        assert!(message(settings.confidence(1.0).interval(&[1.0, 2.0]).unwrap_err()).contains("confidence is 1"));
        assert!(success_rate_interval(3, 2, 0.95).is_err() && success_rate_interval(0, 0, 0.95).is_err());
        let adjusted = benjamini_hochberg(&[0.02, f64::NAN, 0.01]);
        assert!(adjusted[0] == 0.02 && adjusted[1].is_nan() && adjusted[2] == 0.02);
    }
}
