//! The influence of each node on a graph's targets.

use super::row_of::RowOf;
use super::rows::RowStore;
use hooklens_model::error::Result;

/// The influence of every column on the targets. Each known row distributes its own influence (for a target, its
/// weight) over its columns in proportion to their magnitudes, from the last site to the first.
///
/// `order` lists the rows: targets first, then features of later sites before those of earlier ones.
pub(super) fn influence(rows: &mut RowStore, order: &[usize], weights: &[f32], columns: usize) -> Result<Vec<f64>> {
    let mut influence = vec![0f64; columns];
    for row in order {
        let own = match rows.of(*row) {
            RowOf::Target(target) => f64::from(weights[target]),
            RowOf::Feature(feature) => influence[feature],
        };
        if own == 0.0 {
            continue;
        }
        let factor = own / rows.size(*row).max(1e-10);
        rows.each(*row, |columns, entries| {
            let to = influence[columns].iter_mut().zip(entries);
            to.for_each(|(x, entry)| *x += factor * f64::from(entry.abs()));
        })?;
    }
    Ok(influence)
}

/// The lowest score to keep, so that the kept scores add up to at least the fraction `share` of the total. Found by
/// selection, without sorting.
pub(super) fn threshold(scores: &mut [f32], share: f64) -> f32 {
    let total: f64 = scores.iter().map(|x| f64::from(*x)).sum();
    let wanted = share * total;
    let (mut before, mut rest) = (0f64, scores);
    loop {
        match rest.len() {
            0 => return 0.0,
            1 => return rest[0],
            len => {
                let middle = len / 2;
                rest.select_nth_unstable_by(middle, |a, b| b.total_cmp(a));
                let sum: f64 = rest[..middle].iter().map(|x| f64::from(*x)).sum();
                if before + sum >= wanted {
                    rest = &mut rest[..middle];
                } else {
                    before += sum;
                    rest = &mut rest[middle..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::threshold;

    #[test]
    fn a_threshold_is_what_sorting_finds() {
        let scores: Vec<f32> = (0..1000).map(|n| ((n * 7919) % 1000) as f32 / 10.0).collect();
        for share in [0.0, 0.1, 0.5, 0.8, 0.98, 1.0] {
            let mut sorted = scores.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let total: f64 = sorted.iter().map(|x| f64::from(*x)).sum();
            let mut sum = 0.0;
            let least = sorted.iter().find(|x| {
                sum += f64::from(**x);
                sum >= share * total
            });
            assert_eq!(threshold(&mut scores.clone(), share), *least.unwrap(), "{share}");
        }
    }
}
