//! Confidence intervals of an evaluation's metrics.

use hooklens_analysis::statistics::{Interval, Statistics};
use xxhash_rust::xxh3::xxh3_64;

use super::sums::{Losses, Sums};

/// Number of groups that prompts are divided into. Groups are resampled instead of prompts, because the sums of each
/// prompt of a large corpus would not fit in memory.
pub(super) const GROUPS: usize = 32;

/// Fewest groups with tokens from which intervals are computed. Resamples of fewer repeat each other.
const LEAST: usize = 8;

/// The group of a prompt. It depends on the prompt alone, so that any division of a corpus into shards gives the same
/// groups.
pub(super) fn group_of(prompt: &[u32]) -> usize {
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    (xxh3_64(&bytes) % GROUPS as u64) as usize
}

/// Intervals of the metrics that are computed from both sums, under SAELens's names. Metrics that are not defined, and
/// all if too few groups have tokens, have none.
pub(super) fn intervals(sums: &Sums, losses: &Losses) -> Vec<(&'static str, Interval)> {
    let groups: Vec<(&Sums, &Losses)> =
        sums.groups.iter().zip(&losses.groups).filter(|(sums, _)| sums.tokens() > 0).collect();
    if groups.len() < LEAST {
        return Vec::new();
    }
    let settings = Statistics::new();
    let of_sums = |metric: fn(&Sums) -> f64| {
        settings.interval_of(groups.len(), |chosen| {
            let mut all = Sums::default();
            chosen.iter().for_each(|group| all.join(groups[*group as usize].0));
            metric(&all)
        })
    };
    let of_losses = |metric: fn(&Losses) -> f64| {
        settings.interval_of(groups.len(), |chosen| {
            let mut all = Losses::default();
            chosen.iter().for_each(|group| all.join(groups[*group as usize].1));
            metric(&all)
        })
    };
    let all = [
        ("ce_loss_score", of_losses(Losses::loss_recovered)),
        ("kl_div_score", of_losses(Losses::kl_score)),
        ("explained_variance", of_sums(Sums::explained_variance)),
        ("mse", of_sums(Sums::mse)),
        ("cossim", of_sums(Sums::cosine)),
        ("l0", of_sums(Sums::l0)),
    ];
    all.into_iter().filter_map(|(name, interval)| Some((name, interval.ok()?))).collect()
}
