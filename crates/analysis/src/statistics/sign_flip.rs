//! Permutation tests by flipping the signs of effects.

use super::Statistics;
use super::resamples::Resamples;

/// Largest number of examples for which all sign flips are enumerated.
const EXACT: usize = 12;

impl Statistics {
    /// Creates random sign flips of this many examples; none if all sign flips are enumerated.
    pub(super) fn flips(&self, examples: usize) -> Resamples {
        // Uses a different stream of random numbers than the bootstrap does.
        Resamples::new(!self.seed, if examples <= EXACT { 0 } else { self.permutations }, examples, 2)
    }

    /// Fraction of sign flips whose mean is at least as far from zero as the observed mean.
    pub(super) fn sign_flips(&self, effects: &[f64], flips: &Resamples) -> f64 {
        let observed = effects.iter().sum::<f64>().abs();
        // Tolerates rounding errors of sums that are computed in a different order.
        let least = observed - observed * 100.0 * f64::EPSILON;
        if effects.len() <= EXACT {
            let sum = |signs: usize| {
                let signed = |(place, effect): (usize, &f64)| if signs >> place & 1 == 1 { -effect } else { *effect };
                effects.iter().enumerate().map(signed).sum::<f64>()
            };
            let all = 1 << effects.len();
            return (0..all).filter(|signs| sum(*signs).abs() >= least).count() as f64 / all as f64;
        }
        let (mut hits, mut count) = (0usize, 0usize);
        flips.each(|signs| {
            let sum: f64 =
                effects.iter().zip(signs).map(|(effect, sign)| effect * (f64::from(*sign) * 2.0 - 1.0)).sum();
            hits += usize::from(sum.abs() >= least);
            count += 1;
        });
        (hits as f64 + 1.0) / (count as f64 + 1.0)
    }
}
