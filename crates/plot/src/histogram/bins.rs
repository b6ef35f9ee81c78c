//! Histogram bins of equal width, and counts.

use super::super::ticks::Span;

/// Maximum number of bins chosen by a rule.
const MOST: usize = 200;

/// The number of bins for these sorted values.
pub(super) fn count(rising: &[f64]) -> usize {
    let (Some(least), Some(most)) = (rising.first(), rising.last()) else { return 1 };
    if least == most {
        return 1;
    }
    let numbers = rising.len() as f64;
    let distance = quantile(rising, 0.75) - quantile(rising, 0.25);
    let width = 2.0 * distance / numbers.cbrt();
    let count = if width > 0.0 { (most - least) / width } else { numbers.log2() + 1.0 };
    // If values are too far apart, `count` is NaN, which also gives the maximum.
    if count <= MOST as f64 { (count.ceil() as usize).max(1) } else { MOST }
}

/// Edges of bins from the smallest to the largest of these sorted values.
pub(super) fn edges(rising: &[f64], bins: usize) -> Vec<f64> {
    let mut span = Span::of(rising.iter().copied());
    // A single value is placed in the middle of a bin.
    if span.most - span.least <= span.most.abs().max(span.least.abs()) * 1e-9 {
        span = span.widened(0.0);
    }
    between([span.least, span.most], bins)
}

/// Edges of bins between two values.
pub(super) fn between([least, most]: [f64; 2], bins: usize) -> Vec<f64> {
    let at = |edge: usize| if edge == bins { most } else { least + (most - least) * (edge as f64 / bins as f64) };
    (0..=bins).map(at).collect()
}

/// Counts values per bin. A bin includes its lower edge, and only the last bin includes its upper edge.
pub(super) fn counted(values: &[f64], edges: &[f64]) -> Vec<usize> {
    let bins = edges.len() - 1;
    let mut counts = vec![0; bins];
    for value in values {
        // The number of edges at or below the value gives its bin. Values that rounding puts outside the edges count in
        // the first or last bin.
        let bin = edges.partition_point(|edge| edge <= value);
        counts[bin.clamp(1, bins) - 1] += 1;
    }
    counts
}

/// The `share` quantile of sorted values; 0.5 is the median.
fn quantile(rising: &[f64], share: f64) -> f64 {
    let place = share * (rising.len() - 1) as f64;
    let (below, above) = (rising[place.floor() as usize], rising[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_say_how_many_bins() {
        // Quartiles 612.75 and 5513.25: a width of 9801 / 100^(1/3) = 2111.6, which fits 4.6 times into 9801.
        let squares: Vec<f64> = (0..100).map(|n| f64::from(n * n)).collect();
        assert_eq!(count(&squares), 5);
        let even: Vec<f64> = (0..500).map(f64::from).collect();
        assert_eq!(count(&even), 8);
        // The quartiles are equal: log2(100) + 1 = 7.6.
        let mut most_equal = vec![0.0; 90];
        most_equal.extend((1..=10).map(f64::from));
        assert_eq!(count(&most_equal), 8);
        // One value far away would need more bins than the maximum.
        let mut far: Vec<f64> = (0..100).map(f64::from).collect();
        far.push(1e9);
        assert_eq!(count(&far), MOST);
        assert_eq!([count(&[]), count(&[2.0]), count(&[2.0, 2.0])], [1, 1, 1]);
        assert_eq!(count(&[f64::MIN, -1.0, 1.0, f64::MAX]), MOST);
    }

    #[test]
    fn every_number_lies_in_one_bin() {
        let values = [0.0, 0.1, 0.2, 0.3, 0.30000000000000004, 0.7, 1.0];
        let ten = between([0.0, 1.0], 10);
        let counts = counted(&values, &ten);
        assert_eq!(counts.iter().sum::<usize>(), values.len());
        for (bin, count) in counts.iter().enumerate() {
            let within = |value: &&f64| **value >= ten[bin] && (**value < ten[bin + 1] || bin == 9 && **value == 1.0);
            assert_eq!(values.iter().filter(within).count(), *count, "bin {bin}");
        }
        for hostile in [vec![5.0], vec![1e300, 1e300], vec![f64::MIN, f64::MAX], vec![0.0], vec![1.0, 1.0 + 1e-15]] {
            let edges = edges(&hostile, count(&hostile));
            assert!(edges.windows(2).all(|pair| pair[0] < pair[1]), "{hostile:?}: {edges:?}");
            assert_eq!(counted(&hostile, &edges).iter().sum::<usize>(), hostile.len());
        }
    }
}
