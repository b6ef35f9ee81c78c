//! Confidence intervals of an evaluation's metrics.

use hooklens_analysis::statistics::{Interval, Statistics};
use xxhash_rust::xxh3::xxh3_64;

use super::sums::{Losses, Sums};

/// Number of groups that prompts are divided into. Groups are resampled instead of prompts, because the sums of each
/// prompt of a large corpus would not fit in memory.
pub(super) const GROUPS: usize = 32;

/// Minimum number of groups with tokens for computing intervals. Resamples of fewer groups would often be identical.
const LEAST: usize = 8;

/// The group of a prompt. It depends on the prompt alone, so that any division of a corpus into shards gives the same
/// groups.
pub(super) fn group_of(prompt: &[u32]) -> usize {
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    (xxh3_64(&bytes) % GROUPS as u64) as usize
}

/// A metric's interval, under SAELens's name.
type Named = (&'static str, Interval);

/// Intervals of the metrics of losses and divergences. Undefined metrics have no interval, and no metric has one if too
/// few groups have tokens.
pub(super) fn of_losses(losses: &Losses) -> Vec<Named> {
    let groups: Vec<&Losses> = losses.groups.iter().filter(|group| group.positions > 0).collect();
    let interval = |metric: fn(&Losses) -> f64| resampled(&groups, Losses::join, metric);
    let all = [("ce_loss_score", interval(Losses::loss_recovered)), ("kl_div_score", interval(Losses::kl_score))];
    defined(all)
}

/// Intervals of the metrics of one dictionary's reconstructions.
pub(super) fn of_sums(sums: &Sums) -> Vec<Named> {
    let groups: Vec<&Sums> = sums.groups.iter().filter(|group| group.tokens > 0).collect();
    // Only the explained variance needs the mean activations, and adding them takes most of the time.
    let without_means: Vec<Sums> = groups.iter().map(|group| Sums { mean: Vec::new(), ..(*group).clone() }).collect();
    let without_means: Vec<&Sums> = without_means.iter().collect();
    let interval = |groups: &[&Sums], metric: fn(&Sums) -> f64| resampled(groups, Sums::join, metric);
    let all = [
        ("explained_variance", interval(&groups, Sums::explained_variance)),
        ("mse", interval(&without_means, Sums::mse)),
        ("cossim", interval(&without_means, Sums::cosine)),
        ("l0", interval(&without_means, Sums::l0)),
    ];
    defined(all)
}

/// Bootstrap interval of a metric: resamples the groups, and computes the metric of each resample's joined groups.
fn resampled<T: Default>(groups: &[&T], join: fn(&mut T, &T), metric: fn(&T) -> f64) -> Option<Interval> {
    let joined = |chosen: &[u32]| {
        let mut all = T::default();
        chosen.iter().for_each(|group| join(&mut all, groups[*group as usize]));
        metric(&all)
    };
    (groups.len() >= LEAST).then(|| Statistics::new().interval_of(groups.len(), joined).ok()).flatten()
}

fn defined<const N: usize>(all: [(&'static str, Option<Interval>); N]) -> Vec<Named> {
    all.into_iter().filter_map(|(name, interval)| Some((name, interval?))).collect()
}
