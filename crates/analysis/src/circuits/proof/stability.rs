//! [`Stability`]: whether a circuit survives resampling of the prompts.

use crate::attribution::{EdgeScores, Sender};
use crate::circuits::Circuit;
use crate::error::{CircuitError, StatisticsError};
use crate::patching::Receiver;
use crate::statistics::{Statistics, mean};
use hooklens_model::error::Result;

/// How much the best-scored edges or nodes change when the prompts are resampled with replacement (Méloux et al. 2025).
///
/// ```
/// use hooklens::attribution::Gradient;
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// use hooklens::statistics::Statistics;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = ["When Mary and John went to the store, John gave a drink to"; 3];
/// let corrupted = ["When Mary and John went to the store, Mary gave a drink to"; 3];
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let scores = patching.edges(Gradient::AtBase)?;
/// let stability = scores.stability(&Statistics::new().resamples(100), 20)?;
/// assert_eq!((stability.jaccard, stability.inclusion.len()), (1.0, 20)); // equal prompts
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Stability<P = (Sender, Receiver)> {
    /// Edges or nodes that are among the best-scored in at least one resample, each with the fraction of resamples in
    /// which it is among them, in descending order of the fraction.
    pub inclusion: Vec<(P, f64)>,
    /// Mean Jaccard similarity of the resampled circuits with the circuit of all prompts.
    pub jaccard: f64,
    /// Mean Spearman rank correlation between the magnitudes of the resampled scores and of the original ones, over all
    /// edges or nodes.
    pub rank_correlation: f64,
}

impl EdgeScores {
    /// Selects the `count` edges with the largest mean scores by magnitude, and measures how much this selection
    /// changes when the examples are resampled with replacement. `settings` sets the number of resamples and the seed.
    ///
    /// # Errors
    /// Fails for fewer than 2 examples and for scores that are not finite.
    pub fn stability(&self, settings: &Statistics, count: usize) -> Result<Stability> {
        let graph = self.graph();
        let places: Vec<(usize, usize)> = graph.places().collect();
        let values = self.scores.values();
        let examples = values.shape()[2];
        let of = |(from, to): &(usize, usize)| {
            (0..examples).map(|example| values[[*from, *to, example]]).collect::<Vec<f64>>()
        };
        let scores: Vec<Vec<f64>> = places.iter().map(of).collect();
        let found = resampled(&scores, |place| graph.edge_name(places[place]), settings, count)?;
        Ok(found.named(|place| (graph.senders()[places[place].0], graph.receivers()[places[place].1])))
    }
}

/// Resamples examples with replacement. `scores` are `[edge or node, example]`. The result identifies edges or nodes by
/// index; `name` returns their names for messages.
pub(in crate::circuits) fn resampled(
    scores: &[Vec<f64>],
    name: impl Fn(usize) -> String,
    settings: &Statistics,
    count: usize,
) -> Result<Stability<usize>> {
    let examples = scores.first().map_or(0, Vec::len);
    if examples < 2 {
        return Err(StatisticsError::TooFew { what: "stability", least: 2, given: examples }.into());
    }
    for (place, own) in scores.iter().enumerate() {
        if let Some(value) = own.iter().copied().find(|value| !value.is_finite()) {
            return Err(CircuitError::NotFinite { place: name(place), value }.into());
        }
    }
    let count = count.min(scores.len());
    let sums = |chosen: &[u32]| -> Vec<f64> {
        let sum = |own: &Vec<f64>| chosen.iter().map(|example| own[*example as usize]).sum::<f64>().abs();
        scores.iter().map(sum).collect()
    };
    let all: Vec<u32> = (0..examples as u32).collect();
    let whole = sums(&all);
    let (own_order, own_ranks) = (order(&whole), ranks(&whole));
    let mut in_circuit = vec![false; scores.len()];
    own_order[..count].iter().for_each(|place| in_circuit[*place] = true);
    let mut included = vec![0_usize; scores.len()];
    let (mut jaccards, mut correlations) = (Vec::new(), Vec::new());
    settings.bootstrap_resamples(examples).each(|chosen| {
        let resampled = sums(chosen);
        let top = &order(&resampled)[..count];
        let common = top.iter().filter(|place| in_circuit[**place]).count();
        let either = 2 * count - common;
        jaccards.push(if either == 0 { 1.0 } else { common as f64 / either as f64 });
        top.iter().for_each(|place| included[*place] += 1);
        correlations.push(correlation(&own_ranks, &ranks(&resampled)));
    });
    let share = |times: usize| times as f64 / jaccards.len().max(1) as f64;
    let mut inclusion: Vec<(usize, f64)> = included.iter().map(|times| share(*times)).enumerate().collect();
    inclusion.retain(|(_, share)| *share > 0.0);
    inclusion.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(Stability { inclusion, jaccard: mean(&jaccards), rank_correlation: mean(&correlations) })
}

impl Stability<usize> {
    /// Replaces the indices by edges or nodes.
    pub(in crate::circuits) fn named<P>(self, name: impl Fn(usize) -> P) -> Stability<P> {
        let inclusion = self.inclusion.into_iter().map(|(place, share)| (name(place), share)).collect();
        Stability { inclusion, jaccard: self.jaccard, rank_correlation: self.rank_correlation }
    }
}

impl Stability {
    /// The circuit of the edges that are in at least this fraction of the resampled circuits.
    ///
    /// # Errors
    /// Fails if the scores belong to a model without these edges.
    pub fn core(&self, scores: &EdgeScores, least: f64) -> Result<Circuit, CircuitError> {
        let stable = self.inclusion.iter().filter(|(_, share)| *share >= least);
        Circuit::of_edges(&scores.graph(), stable.map(|(edge, _)| *edge))
    }
}

/// Indices in descending order of the values.
fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    order
}

/// Ranks of the values; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let order = order(values);
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|edge| ranks[*edge] = rank);
        first += equal.len();
    }
    ranks
}

/// Pearson correlation; 1 if neither varies.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut product, mut square_a, mut square_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        product += a * b;
        square_a += a * a;
        square_b += b * b;
    }
    match (square_a * square_b).sqrt() {
        0.0 => f64::from(square_a == square_b),
        size => product / size,
    }
}

#[cfg(test)]
mod tests {
    use super::{correlation, ranks};

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0]), [0.5, 2.0, 0.5, 3.0]);
        assert_eq!(correlation(&[1.0, 2.0], &[5.0, 3.0]), -1.0);
        assert_eq!(correlation(&[1.0, 1.0], &[2.0, 2.0]), 1.0);
    }
}
