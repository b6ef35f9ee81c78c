//! [`MissedEffect`]: how large an effect the nodes outside a circuit can have.

use ndarray::ArrayD;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::NodeCircuit;
use crate::error::CircuitError;
use crate::patching::{Patchable, Patching};
use crate::statistics::{Statistics, mean};
use hooklens_model::driver::private::Spliceable;
use hooklens_model::error::Result;
use hooklens_model::model::Identified;

/// A bound on the effects of the nodes outside a circuit, computed from ablations of random subsets of these nodes.
///
/// Estimates by gradients can miss nodes with large effects, and ablating every node to be sure is expensive. AtP*
/// (Kramár et al. 2024) therefore tests random subsets of the nodes that were not verified: if such a node had a large
/// effect, subsets with the node would differ from subsets without it. This assumes that effects add up within subsets.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MissedEffect {
    /// Bound on the magnitude of the effect of every node outside the circuit, at the requested confidence, in units of
    /// the metric.
    pub bound: f64,
    /// The node with the largest bound, and the estimate of its effect.
    pub largest: (Vec<usize>, f64),
    /// Mean change in the metric when each random subset is ablated.
    pub changes: Vec<f64>,
}

impl<M: Patchable + Identified + Spliceable> Patching<'_, M> {
    /// Ablates random subsets of the nodes outside a circuit (each node is in half of the subsets) and bounds the
    /// effect of any single node. The bound is the maximum over nodes of `|d| + t * se`, where `d` is the difference
    /// between the mean metric of the subsets with and without the node, `se` its standard error, and `t` the quantile
    /// of Student's t distribution for the confidence (Welch's test, one-sided). No correction for the number of nodes
    /// is needed: the maximum is at least the bound for the node whose effect is truly the largest. `settings` sets the
    /// confidence and the seed.
    ///
    /// ```
    /// use hooklens::circuits::Selection;
    /// use hooklens::hook::Axis;
    /// use hooklens::patching::Sites;
    /// use hooklens::prelude::*;
    /// use hooklens::statistics::Statistics;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let patching = model.ablating(clean, Ablation::Resample(corrupted.into())).logit_diff("Mary", "John")?;
    /// let heads = Sites::new("*attn.hook_z").per([Axis::Head]);
    /// let scores = patching.attribution("*attn.hook_z")?.sweep(&heads)?;
    /// let verified = patching.nodes(&heads)?.best(&scores, Selection::Top, 8)?;
    /// let missed = patching.missed_effect(&verified, 64, &Statistics::new().confidence(0.99))?;
    /// println!("no other head changes the metric by more than {:.2}", missed.bound);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if nothing is outside the circuit, for fewer than 8 subsets, and for a confidence that is not between 0.5 and
    /// 1; otherwise, same as [`Patching::run_nodes`].
    pub fn missed_effect(&self, verified: &NodeCircuit, subsets: usize, settings: &Statistics) -> Result<MissedEffect> {
        let confidence = settings.confidence;
        if !(confidence > 0.5 && confidence < 1.0) {
            let (name, given) = ("the confidence", confidence.to_string());
            return Err(CircuitError::Setting { name, given, expected: "more than 0.5 and less than 1" }.into());
        }
        if subsets < 8 {
            let (name, given) = ("the number of subsets", subsets.to_string());
            return Err(CircuitError::Setting { name, given, expected: "at least 8" }.into());
        }
        let outside: Vec<Vec<usize>> = verified.complement().nodes().collect();
        if outside.is_empty() {
            let (name, given) = ("the number of nodes outside the circuit", "0".to_string());
            return Err(CircuitError::Setting { name, given, expected: "at least 1" }.into());
        }
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        // Each node is in half of the subsets (rounded down), so that both means are estimated equally well.
        let mut half: Vec<bool> = (0..subsets).map(|subset| subset < subsets / 2).collect();
        let draw = |_| {
            half.shuffle(&mut random);
            half.clone()
        };
        let drawn: Vec<Vec<bool>> = outside.iter().map(draw).collect();
        let of = |subset: usize| {
            let mut kept = ArrayD::from_elem(verified.kept.raw_dim(), true);
            for (node, drawn) in outside.iter().zip(&drawn) {
                kept[ndarray::IxDyn(node)] = !drawn[subset];
            }
            NodeCircuit { kept, ..verified.clone() }
        };
        let circuits: Vec<NodeCircuit> = (0..subsets).map(of).collect();
        let runs = self.run_nodes(&circuits)?;
        let clean = mean(&runs.clean);
        let own = runs.metric.values().rows();
        let changes: Vec<f64> = own.into_iter().map(|row| mean(&row.to_vec()) - clean).collect();
        let (place, effect, bound) = largest(&changes, &drawn, confidence);
        Ok(MissedEffect { bound, largest: (outside[place].clone(), effect), changes })
    }
}

/// The node with the largest bound on its effect, the estimate of its effect, and the bound. `drawn` has one list per
/// node: whether each subset contains the node.
fn largest(changes: &[f64], drawn: &[Vec<bool>], confidence: f64) -> (usize, f64, f64) {
    let of = |(place, drawn): (usize, &Vec<bool>)| {
        let (with, without): (Vec<_>, Vec<_>) = changes.iter().zip(drawn).partition(|(_, drawn)| **drawn);
        let values = |half: Vec<(&f64, &bool)>| half.into_iter().map(|(change, _)| *change).collect::<Vec<f64>>();
        let (effect, upper) = difference(&values(with), &values(without), confidence);
        (place, effect, effect.abs() + upper)
    };
    let bounds = drawn.iter().enumerate().map(of);
    bounds.fold((0, 0.0, f64::NEG_INFINITY), |most, own| if own.2 > most.2 { own } else { most })
}

/// The difference between two means, and its standard error times the quantile of Student's t distribution with Welch's
/// degrees of freedom.
fn difference(with: &[f64], without: &[f64], confidence: f64) -> (f64, f64) {
    let squares = |values: &[f64]| {
        let mean = mean(values);
        let sum: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        sum / (values.len() - 1) as f64 / values.len() as f64
    };
    let (a, b) = (squares(with), squares(without));
    let effect = mean(with) - mean(without);
    if a + b == 0.0 {
        return (effect, 0.0);
    }
    let freedom = (a + b).powi(2) / (a.powi(2) / (with.len() - 1) as f64 + b.powi(2) / (without.len() - 1) as f64);
    let quantile = StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(confidence));
    (effect, quantile * (a + b).sqrt())
}

#[cfg(test)]
mod tests {
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{difference, largest};

    /// In at least 95 % of data sets, the bound is above the largest effect.
    #[test]
    fn bounds_hold_as_often_as_they_say() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let (mut held, sets) = (0, 400);
        for _ in 0..sets {
            let effects: Vec<f64> = (0..15).map(|_| random.random_range(-1.0..1.0)).collect();
            let mut half: Vec<bool> = (0..24).map(|subset| subset < 12).collect();
            let mut draw = |_: &f64| {
                half.shuffle(&mut random);
                half.clone()
            };
            let drawn: Vec<Vec<bool>> = effects.iter().map(&mut draw).collect();
            let sum = |subset: usize| effects.iter().zip(&drawn).filter(|own| own.1[subset]).map(|own| own.0).sum();
            let changes: Vec<f64> = (0..24).map(sum).collect();
            let most = effects.iter().fold(0.0, |most: f64, own| most.max(own.abs()));
            held += usize::from(largest(&changes, &drawn, 0.95).2 >= most);
        }
        assert!(held * 100 >= sets * 95, "{held} of {sets}");
    }

    /// The expected values come from `scipy.stats.ttest_ind(equal_var=False).confidence_interval(0.9)`, which leaves
    /// 5 % in each tail.
    #[test]
    fn differences_have_the_quantiles_of_scipy() {
        let (effect, upper) = difference(&[1.0, 2.0, 4.0, 3.0], &[0.5, 1.5, 0.0], 0.95);
        assert!((effect - 1.8333333333333333).abs() < 1e-12, "{effect}");
        assert!((upper - 1.5849935709342675).abs() < 1e-9, "{upper}");
    }
}
