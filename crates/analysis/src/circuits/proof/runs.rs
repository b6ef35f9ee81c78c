//! [`CircuitRuns`]: the metric with everything outside a circuit ablated.

use crate::circuits::Circuit;
use crate::circuits::edge_run::{EdgeRunner, mask_of};
use crate::error::{CircuitError, StatisticsError};
use crate::labeled::{LabeledArray, LabeledAxis, matching};
use crate::patching::Patching;
use crate::statistics::{Interval, Statistics, mean};
use hooklens_model::error::Result;
use ndarray::{Array2, IxDyn};

/// Metrics of circuits with everything outside them ablated, and of the whole model and the empty circuit.
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
/// let graph = EdgeGraph::of(&model)?;
/// let runs = patching.run_circuits(&[Circuit::full(&graph), Circuit::empty(&graph)])?;
/// let faithfulness = runs.faithfulness()?;
/// assert!((faithfulness[0] - 1.0).abs() < 1e-4 && faithfulness[1].abs() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CircuitRuns {
    /// The metric with everything outside the circuit ablated, `[circuit, example]`.
    pub metric: LabeledArray,
    /// The metric without ablations, per example.
    pub clean: Vec<f64>,
    /// The metric with all edges ablated, per example.
    pub ablated: Vec<f64>,
}

impl Patching<'_> {
    /// Runs circuits: on each prompt, every edge outside the circuit carries the sender's output from the source of
    /// patches instead.
    ///
    /// With [`Patching::ablating`], the source is zeros, means, or a run on a different prompt. With [`Patching::new`],
    /// the source is the run on the clean prompt and the circuits run on the corrupted prompts; call
    /// [`Patching::reversed`] to ablate runs on the clean prompts.
    ///
    /// Takes one forward pass per circuit and batch of examples of equal length, however many edges are ablated. Queries,
    /// keys, values and MLPs each get an input of their own, so a sender's output may be ablated for one receiver and
    /// kept for another.
    ///
    /// # Errors
    /// Fails for a circuit of a different model ([`CircuitError`]), for latent attention, for architectures that
    /// [`EdgeGraph::of`](crate::attribution::EdgeGraph::of) refuses, and for models on several devices; otherwise, same
    /// as [`Patching::sweep`].
    pub fn run_circuits(&self, circuits: &[Circuit]) -> Result<CircuitRuns> {
        let runner = EdgeRunner::new(self)?;
        for circuit in circuits {
            runner.graph().check_same(circuit.graph())?;
        }
        self.run_masks(&runner, circuits.iter().map(mask_of))
    }

    /// Like [`Patching::run_circuits`], for masks that say how much of each edge is ablated. The masks are computed
    /// again for each batch, so that only one is in memory.
    pub(in crate::circuits) fn run_masks(
        &self,
        runner: &EdgeRunner<'_, '_>,
        masks: impl ExactSizeIterator<Item = Array2<f32>> + Clone,
    ) -> Result<CircuitRuns> {
        let none = mask_of(&Circuit::empty(runner.graph()));
        let examples = self.examples();
        let (mut clean, mut ablated) = (vec![0.0; examples], vec![0.0; examples]);
        let mut metric = ndarray::ArrayD::zeros(IxDyn(&[masks.len(), examples]));
        let mut done = 0;
        for batch in runner.batches() {
            let group = runner.group(batch)?;
            let own = runner.clean(&group.examples)?;
            let empty = runner.metric(&group, &none)?;
            for (row, example) in group.examples.iter().enumerate() {
                (clean[*example], ablated[*example]) = (own[row], empty[row]);
            }
            for (circuit, mask) in masks.clone().enumerate() {
                for (value, example) in runner.metric(&group, &mask)?.into_iter().zip(&group.examples) {
                    metric[[circuit, *example]] = value;
                }
                done += group.examples.len();
                self.tell(done, masks.len() * examples);
            }
        }
        let axes = [LabeledAxis::numbered("circuit", masks.len()), LabeledAxis::numbered("example", examples)];
        Ok(CircuitRuns { metric: matching(axes, metric), clean, ablated })
    }
}

impl CircuitRuns {
    /// Fraction of the metric that each circuit recovers: `(m_circuit - m_ablated) / (m_clean - m_ablated)`, where each
    /// `m` is a mean over examples (as in Mueller et al. 2025, MIB).
    ///
    /// # Errors
    /// [`CircuitError::NoDifference`] if the mean metric is the same with all and with no edges ablated.
    pub fn faithfulness(&self) -> Result<Vec<f64>, CircuitError> {
        let (clean, ablated) = (mean(&self.clean), mean(&self.ablated));
        if clean == ablated {
            return Err(CircuitError::NoDifference { clean });
        }
        let all: Vec<u32> = (0..self.clean.len() as u32).collect();
        Ok((0..self.circuits()).map(|circuit| self.recovered(circuit, &all)).collect())
    }

    /// Bootstrap intervals of [`CircuitRuns::faithfulness`] over examples.
    ///
    /// # Errors
    /// Same as [`Statistics::interval`].
    pub fn intervals(&self, settings: &Statistics) -> Result<Vec<Interval>, StatisticsError> {
        let of = |circuit| settings.interval_of(self.clean.len(), |chosen| self.recovered(circuit, chosen));
        (0..self.circuits()).map(of).collect()
    }

    pub(super) fn circuits(&self) -> usize {
        self.metric.values().shape()[0]
    }

    /// Fraction of the metric that a circuit recovers on the chosen examples.
    pub(super) fn recovered(&self, circuit: usize, chosen: &[u32]) -> f64 {
        let values = self.metric.values();
        let (mut own, mut clean, mut ablated) = (0.0, 0.0, 0.0);
        for example in chosen.iter().map(|example| *example as usize) {
            own += values[[circuit, example]];
            clean += self.clean[example];
            ablated += self.ablated[example];
        }
        (own - ablated) / (clean - ablated)
    }
}
