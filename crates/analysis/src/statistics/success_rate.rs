//! Exact intervals of success rates.

use statrs::function::beta::checked_beta_reg;

use super::Interval;
use crate::error::StatisticsError;

/// Number of bisection steps between 0 and 1, enough for the precision of `f64`.
const HALVINGS: usize = 64;

/// Exact interval of a success rate, such as an accuracy (Clopper and Pearson 1934).
///
/// ```
/// use hooklens::statistics::success_rate_interval;
/// let interval = success_rate_interval(0, 6, 0.95)?;
/// assert!(interval.low == 0.0 && (interval.high - 0.459258).abs() < 1e-6);
/// # Ok::<(), hooklens::statistics::StatisticsError>(())
/// ```
///
/// # Errors
/// [`StatisticsError::Trials`] if there are no trials, or fewer trials than successes; [`StatisticsError::Confidence`].
pub fn success_rate_interval(successes: u64, trials: u64, confidence: f64) -> Result<Interval, StatisticsError> {
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(StatisticsError::Confidence { given: confidence });
    }
    if trials == 0 || successes > trials {
        return Err(StatisticsError::Trials { successes, trials });
    }
    let tail = (1.0 - confidence) / 2.0;
    let (hits, misses) = (successes as f64, (trials - successes) as f64);
    // P(X >= k) for a rate p is the regularized incomplete beta function at p, with parameters k and n - k + 1.
    let low = if successes == 0 { 0.0 } else { rate(hits, misses + 1.0, tail) };
    let high = if successes == trials { 1.0 } else { rate(hits + 1.0, misses, 1.0 - tail) };
    Ok(Interval { low, high })
}

/// The rate at which the regularized incomplete beta function with parameters `a` and `b` equals `value`.
fn rate(a: f64, b: f64, value: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        // The arguments are positive, and the rate is between 0 and 1, so the function is defined.
        match checked_beta_reg(a, b, middle).is_ok_and(|found| found < value) {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}
