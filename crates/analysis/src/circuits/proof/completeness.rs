//! Completeness and minimality (Wang et al. 2022).

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::attribution::Sender;
use crate::circuits::Circuit;
use crate::circuits::edge_run::{EdgeRunner, mask_of};
#[cfg(doc)]
use crate::error::CircuitError;
use crate::patching::{Patching, Receiver};
use hooklens_model::error::Result;

/// Faithfulness of a circuit and of the whole model after random edges of the circuit were removed from both. A complete
/// circuit loses as much as the model does.
///
/// ```
/// use hooklens::attribution::EdgeGraph;
/// use hooklens::circuits::Circuit;
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let whole = Circuit::full(&EdgeGraph::of(&model)?);
/// assert!(patching.completeness(&whole, 3, 0)?.incompleteness() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Completeness {
    /// Faithfulness of the circuit without the removed edges, per subset.
    pub circuit: Vec<f64>,
    /// Faithfulness of the model without the removed edges, per subset.
    pub model: Vec<f64>,
}

impl Completeness {
    /// The largest difference between the circuit and the model over subsets. 0 for a complete circuit.
    pub fn incompleteness(&self) -> f64 {
        self.circuit.iter().zip(&self.model).map(|(circuit, model)| (circuit - model).abs()).fold(0.0, f64::max)
    }
}

impl Patching<'_> {
    /// Removes `subsets` random subsets of the circuit's edges (each edge with probability 1/2) from the circuit and
    /// from the whole model, and measures the faithfulness of both.
    ///
    /// # Errors
    /// [`CircuitError::NoDifference`] if the mean metric is the same with all and with no edges ablated; otherwise, same
    /// as [`Patching::run_circuits`].
    pub fn completeness(&self, circuit: &Circuit, subsets: usize, seed: u64) -> Result<Completeness> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut without, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..subsets {
            let (kept, removed): (Vec<_>, Vec<_>) = circuit.places().partition(|_| random.random_bool(0.5));
            without.push(Circuit::of_places(circuit.graph(), kept));
            whole.push(Circuit::of_places(circuit.graph(), removed).complement());
        }
        without.extend(whole);
        let mut faithfulness = self.run_circuits(&without)?.faithfulness()?;
        let model = faithfulness.split_off(subsets);
        Ok(Completeness { circuit: faithfulness, model })
    }

    /// Removes each edge of the circuit in turn and returns the loss of faithfulness, in descending order of magnitude.
    /// Edges with a loss near 0 could be left out.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeGraph, Sender};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::patching::{Ablation, Metric, Patching};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
    /// let graph = EdgeGraph::of(&model)?;
    /// let to_logits = graph.edges().filter(|(sender, _)| *sender != Sender::Embed).take(3);
    /// let losses = patching.minimality(&Circuit::of_edges(&graph, to_logits)?)?;
    /// assert_eq!(losses.len(), 3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::completeness`].
    pub fn minimality(&self, circuit: &Circuit) -> Result<Vec<(Sender, Receiver, f64)>> {
        let edges: Vec<(usize, usize)> = circuit.places().collect();
        let runner = EdgeRunner::new(self)?;
        runner.graph().check_same(circuit.graph())?;
        let whole = mask_of(circuit);
        let masks = (0..edges.len() + 1).map(|number| {
            let mut mask = whole.clone();
            if let Some(left_out) = number.checked_sub(1) {
                mask[edges[left_out]] = 1.0;
            }
            mask
        });
        let faithfulness = self.run_masks(&runner, masks)?.faithfulness()?;
        let graph = circuit.graph();
        let loss = |(number, (from, to)): (usize, &(usize, usize))| {
            (graph.senders()[*from], graph.receivers()[*to], faithfulness[0] - faithfulness[number + 1])
        };
        let mut losses: Vec<_> = edges.iter().enumerate().map(loss).collect();
        losses.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
        Ok(losses)
    }
}
