//! [`FaithfulnessCurve`]: how much of the metric is recovered by circuits of increasing size.

use serde::Serialize;

use super::CircuitRuns;
use crate::attribution::EdgeScores;
use crate::circuits::{Circuit, NodeCircuit};
use crate::error::{CircuitError, StatisticsError};
use crate::patching::{Patchable, Patching, PatchingResult};
use crate::statistics::{Interval, Statistics};
use hooklens_model::driver::private::Spliceable;
use hooklens_model::error::Result;
use hooklens_model::model::Identified;

/// Circuit sizes at which MIB evaluates faithfulness, as fractions of all edges.
pub const MIB_SHARES: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// How edges or nodes are chosen by their scores.
///
/// ```
/// use hooklens::circuits::Selection;
/// assert_eq!(Selection::default(), Selection::Top);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Selection {
    /// The largest scores by magnitude ([`Circuit::top`]).
    #[default]
    Top,
    /// Those with the lowest scores: their ablation lowers the metric most ([`Circuit::most_helpful`]). MIB selects
    /// edges like this for CPR.
    MostHelpful,
    /// Grown backward from the logits ([`Circuit::greedy`]).
    Greedy,
    /// Grown backward from the logits by the lowest scores ([`Circuit::greedy_helpful`]).
    GreedyHelpful,
}

/// The circuit of the `count` best edges.
///
/// # Errors
/// Fails for scores that are not finite.
pub fn best_edges(scores: &EdgeScores, selection: Selection, count: usize) -> Result<Circuit, CircuitError> {
    match selection {
        Selection::Top => Circuit::top(scores, count),
        Selection::MostHelpful => Circuit::most_helpful(scores, count),
        Selection::Greedy => Circuit::greedy(scores, count),
        Selection::GreedyHelpful => Circuit::greedy_helpful(scores, count),
    }
}

/// Faithfulness of circuits with increasing fractions of the edges or nodes (Mueller et al. 2025, MIB).
///
/// ```
/// use hooklens::attribution::Gradient;
/// use hooklens::circuits::{MIB_SHARES, Selection};
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let curve = patching.faithfulness(&patching.edges(Gradient::Integrated(5))?, Selection::Top, &MIB_SHARES)?;
/// println!("CPR {:.2}, CMD {:.2}", curve.cpr()?, curve.cmd()?);
/// assert!((curve.runs.faithfulness()?[9] - 1.0).abs() < 1e-4); // the whole model
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FaithfulnessCurve<C = Circuit> {
    /// Fractions of the edges or nodes, in ascending order.
    pub shares: Vec<f64>,
    /// The circuits.
    pub circuits: Vec<C>,
    /// Metrics of the circuits.
    pub runs: CircuitRuns,
}

impl Patching<'_> {
    /// Runs circuits of the best-scored edges, one circuit for each value in `shares`, a fraction of the model's edges.
    /// Edges that are not on a path from the embedding to the logits are removed ([`Circuit::pruned`]), as in MIB. See
    /// [`Patching::run_circuits`] for what is ablated.
    ///
    /// # Errors
    /// Fails for a fraction that is not between 0 and 1, for scores that are not finite and for scores of a different
    /// model; otherwise, same as [`Patching::run_circuits`].
    pub fn faithfulness(&self, scores: &EdgeScores, selection: Selection, shares: &[f64]) -> Result<FaithfulnessCurve> {
        let shares = ascending(shares)?;
        let edges = scores.graph().len();
        let of = |share: &f64| Ok(best_edges(scores, selection, (edges as f64 * share) as usize)?.pruned());
        let circuits = shares.iter().map(of).collect::<Result<Vec<_>, CircuitError>>()?;
        let runs = self.run_circuits(&circuits)?;
        Ok(FaithfulnessCurve { shares, circuits, runs })
    }
}

impl<M: Patchable + Identified + Spliceable> Patching<'_, M> {
    /// Runs circuits of the best-scored of these nodes, one circuit for each value in `shares`, a fraction of the
    /// nodes. See [`Patching::run_nodes`] for what is ablated.
    ///
    /// # Errors
    /// Fails for a fraction that is not between 0 and 1; otherwise, same as [`NodeCircuit::best`] and
    /// [`Patching::run_nodes`].
    pub fn node_faithfulness(
        &self,
        nodes: &NodeCircuit,
        scores: &PatchingResult,
        selection: Selection,
        shares: &[f64],
    ) -> Result<FaithfulnessCurve<NodeCircuit>> {
        let shares = ascending(shares)?;
        let of = |share: &f64| nodes.best(scores, selection, (nodes.len() as f64 * share) as usize);
        let circuits = shares.iter().map(of).collect::<Result<Vec<_>, CircuitError>>()?;
        let runs = self.run_nodes(&circuits)?;
        Ok(FaithfulnessCurve { shares, circuits, runs })
    }
}

/// Sorts the fractions in ascending order, and fails if one is not between 0 and 1.
fn ascending(shares: &[f64]) -> Result<Vec<f64>, CircuitError> {
    if let Some(given) = shares.iter().copied().find(|share| !(0.0..=1.0).contains(share)) {
        return Err(CircuitError::Share { given });
    }
    let mut shares = shares.to_vec();
    shares.sort_by(f64::total_cmp);
    Ok(shares)
}

impl<C> FaithfulnessCurve<C> {
    /// Circuit performance ratio: the area under the faithfulness curve, by the trapezoidal rule over the fractions.
    ///
    /// # Errors
    /// Same as [`CircuitRuns::faithfulness`].
    pub fn cpr(&self) -> Result<f64, CircuitError> {
        Ok(area(&self.shares, &self.runs.faithfulness()?))
    }

    /// Circuit-model distance: the area between the faithfulness curve and 1. It is 0 if all circuits behave like the
    /// whole model.
    ///
    /// # Errors
    /// Same as [`CircuitRuns::faithfulness`].
    pub fn cmd(&self) -> Result<f64, CircuitError> {
        Ok(area(&self.shares, &distances(&self.runs.faithfulness()?)))
    }

    /// Bootstrap interval of [`FaithfulnessCurve::cpr`] over examples.
    ///
    /// # Errors
    /// Same as [`Statistics::interval`].
    pub fn cpr_interval(&self, settings: &Statistics) -> Result<Interval, StatisticsError> {
        settings.interval_of(self.runs.clean.len(), |chosen| area(&self.shares, &self.recovered(chosen)))
    }

    /// Bootstrap interval of [`FaithfulnessCurve::cmd`] over examples.
    ///
    /// # Errors
    /// Same as [`Statistics::interval`].
    pub fn cmd_interval(&self, settings: &Statistics) -> Result<Interval, StatisticsError> {
        settings.interval_of(self.runs.clean.len(), |chosen| area(&self.shares, &distances(&self.recovered(chosen))))
    }

    fn recovered(&self, chosen: &[u32]) -> Vec<f64> {
        (0..self.shares.len()).map(|circuit| self.runs.recovered(circuit, chosen)).collect()
    }
}

fn distances(faithfulness: &[f64]) -> Vec<f64> {
    faithfulness.iter().map(|own| (1.0 - own).abs()).collect()
}

/// Area under the curve through `values` at ascending `places`, by the trapezoidal rule.
fn area(places: &[f64], values: &[f64]) -> f64 {
    let steps = places.windows(2).zip(values.windows(2));
    steps.map(|(places, values)| (places[1] - places[0]) * (values[0] + values[1]) / 2.0).sum()
}

#[cfg(test)]
mod tests {
    use super::area;

    #[test]
    fn areas_are_trapezoids() {
        assert_eq!(area(&[0.0, 0.5, 1.0], &[0.0, 1.0, 1.0]), 0.25 + 0.5);
        assert_eq!(area(&[0.5], &[3.0]), 0.0);
    }
}
