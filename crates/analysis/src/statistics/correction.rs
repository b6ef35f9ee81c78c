//! Corrections for testing many sites.

/// p-values adjusted by Benjamini and Hochberg (1995): among the sites whose adjusted value is at most `q`, the
/// expected fraction of false discoveries is at most `q`. NaN values stay NaN and do not count.
///
/// ```
/// let adjusted = hooklens::statistics::benjamini_hochberg(&[0.01, 0.04, 0.03, 0.5]);
/// for (found, expected) in adjusted.iter().zip([0.04, 0.16 / 3.0, 0.16 / 3.0, 0.5]) {
///     assert!((found - expected).abs() < 1e-12);
/// }
/// ```
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).filter(|place| !p_values[*place].is_nan()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![f64::NAN; p_values.len()];
    let (count, mut least) = (order.len() as f64, 1.0);
    for (rank, place) in order.into_iter().enumerate().rev() {
        least = f64::min(least, p_values[place] * count / (rank + 1) as f64);
        adjusted[place] = least;
    }
    adjusted
}
