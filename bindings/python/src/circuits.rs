//! Edge scores and circuits.

use hooklens::attribution::{EdgeGraph, EdgeScores as Scores, Sender};
use hooklens::circuits::{Adversary, Circuit as Edges, CircuitRuns, MIB_SHARES, Selection};
use hooklens::patching::Receiver;
use hooklens::plot::CircuitDiagram;
use hooklens::statistics::Statistics;
use hooklens_analysis::circuits::best_edges;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::enter::enter;
use crate::error::raise;
use crate::labeled::Labeled;
use crate::model::Model;
use crate::patching::PatchingTask;
use crate::show::{Bundle, bundle};

/// A score for every edge and example.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct EdgeScores {
    scores: Scores,
}

impl EdgeScores {
    pub(crate) fn new(scores: Scores) -> Self {
        Self { scores }
    }
}

/// An edge: sender, receiver, and a number.
type Edge = (String, String, f64);

#[pymethods]
impl EdgeScores {
    /// The edges with the largest scores by magnitude: sender, receiver, and mean score.
    fn largest(&self, count: usize) -> Vec<Edge> {
        self.scores.largest(count).into_iter().map(named).collect()
    }

    /// Mean scores, `[sender, receiver]`.
    fn mean(&self) -> Labeled {
        Labeled::new(self.scores.mean())
    }

    /// Scores, `[sender, receiver, example]`.
    #[getter]
    fn scores(&self) -> Labeled {
        Labeled::new(self.scores.scores.clone())
    }

    /// The circuit of the best edges: `top` by magnitude, `most-helpful` by sign, or grown from the logits (`greedy` or
    /// `greedy-helpful`).
    #[pyo3(signature = (count, selection="top"))]
    fn circuit(&self, py: Python<'_>, count: usize, selection: &str) -> PyResult<Circuit> {
        let chosen = best_edges(&self.scores, selection_named(selection)?, count);
        Ok(Circuit { edges: chosen.map_err(|error| raise(py, error))?.pruned() })
    }

    /// For each edge, the fraction of resamples of the examples in which the edge is among the `count` best; and the
    /// mean Jaccard index of the resampled circuits with the circuit of all examples.
    #[pyo3(signature = (count, resamples=200, seed=0))]
    fn stability(&self, py: Python<'_>, count: usize, resamples: usize, seed: u64) -> PyResult<(Vec<Edge>, f64)> {
        let stability = enter(py, || self.scores.stability(&Statistics::new().resamples(resamples).seed(seed), count))?;
        Ok((
            stability.inclusion.into_iter().map(|((from, to), share)| named((from, to, share))).collect(),
            stability.jaccard,
        ))
    }
}

/// A set of edges of a model.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Circuit {
    edges: Edges,
}

#[pymethods]
impl Circuit {
    /// Reads a circuit that [`Circuit::to_json`] or MIB's code wrote, and checks that it belongs to the model.
    #[staticmethod]
    fn from_json(py: Python<'_>, model: &Model, text: &str) -> PyResult<Self> {
        let model = model.shared();
        let edges = enter(py, || Ok(Edges::from_json(&EdgeGraph::of(&model)?, text)?))?;
        Ok(Self { edges })
    }

    /// The circuit as JSON, with the hash of the model's weights.
    fn to_json(&self) -> String {
        self.edges.to_json()
    }

    /// Sender and receiver of every edge.
    fn edges(&self) -> Vec<(String, String)> {
        self.edges.edges().map(|(sender, receiver)| (sender.to_string(), receiver.to_string())).collect()
    }

    /// The edges of the model that are not in the circuit.
    fn complement(&self) -> Self {
        Self { edges: self.edges.complement() }
    }

    /// The Jaccard index of two circuits: the number of common edges divided by the number of edges in either.
    fn jaccard(&self, py: Python<'_>, other: &Self) -> PyResult<f64> {
        self.edges.jaccard(&other.edges).map_err(|error| raise(py, error))
    }

    fn __len__(&self) -> usize {
        self.edges.len()
    }

    fn mimebundle(&self) -> PyResult<Bundle> {
        let diagram = CircuitDiagram::new(&self.edges, None)
            .map_err(|error| PyValueError::new_err(hooklens::error_chain(&error)))?;
        bundle(&diagram)
    }
}

fn named((sender, receiver, number): (Sender, Receiver, f64)) -> Edge {
    (sender.to_string(), receiver.to_string(), number)
}

fn selection_named(name: &str) -> PyResult<Selection> {
    match name {
        "top" => Ok(Selection::Top),
        "most-helpful" => Ok(Selection::MostHelpful),
        "greedy" => Ok(Selection::Greedy),
        "greedy-helpful" => Ok(Selection::GreedyHelpful),
        other => Err(PyValueError::new_err(format!(
            "selection must be \"top\", \"most-helpful\", \"greedy\" or \"greedy-helpful\", not {other:?}"
        ))),
    }
}

/// Faithfulness and its interval.
pub(crate) type Run = (f64, Option<(f64, f64)>);

/// Fractions of edges, faithfulness of each circuit, CPR and CMD.
type Curve = (Vec<f64>, Vec<f64>, f64, f64);

/// Faithfulness of each circuit, and its interval if there are several examples.
pub(crate) fn faithfulness_of(runs: &CircuitRuns) -> hooklens::Result<Vec<Run>> {
    let values = runs.faithfulness()?;
    let intervals = match runs.clean.len() {
        0 | 1 => vec![None; values.len()],
        _ => runs.intervals(&Statistics::new())?.iter().map(|own| Some((own.low, own.high))).collect(),
    };
    Ok(values.into_iter().zip(intervals).collect())
}

#[pymethods]
impl PatchingTask {
    /// The circuit that ACDC finds: removes edges one at a time if their ablation changes the metric by less than
    /// `threshold`.
    #[pyo3(signature = (threshold, ablation="patching"))]
    fn acdc(&self, py: Python<'_>, threshold: f64, ablation: &str) -> PyResult<Circuit> {
        self.ablating(py, ablation, |patching| Ok(Circuit { edges: patching.acdc(threshold)? }))
    }

    /// Faithfulness of each circuit, with everything else ablated, and its 95 % interval over the examples if there is
    /// more than one.
    #[pyo3(signature = (circuits, ablation="patching"))]
    fn run_circuits(&self, py: Python<'_>, circuits: Vec<Py<Circuit>>, ablation: &str) -> PyResult<Vec<Run>> {
        let circuits: Vec<Edges> = circuits.iter().map(|circuit| circuit.get().edges.clone()).collect();
        self.ablating(py, ablation, |patching| faithfulness_of(&patching.run_circuits(&circuits)?))
    }

    /// Faithfulness of circuits with increasing fractions of the edges, and CPR and CMD as MIB defines them.
    #[pyo3(signature = (scores, selection="top", shares=None, ablation="patching"))]
    fn faithfulness(
        &self,
        py: Python<'_>,
        scores: &EdgeScores,
        selection: &str,
        shares: Option<Vec<f64>>,
        ablation: &str,
    ) -> PyResult<Curve> {
        let selection = selection_named(selection)?;
        let shares = shares.unwrap_or_else(|| MIB_SHARES.to_vec());
        self.ablating(py, ablation, |patching| {
            let curve = patching.faithfulness(&scores.scores, selection, &shares)?;
            Ok((curve.shares.clone(), curve.runs.faithfulness()?, curve.cpr()?, curve.cmd()?))
        })
    }

    /// Faithfulness with all edges outside a circuit ablated, and the worst faithfulness with only a subset of these
    /// edges ablated.
    #[pyo3(signature = (circuit, steps=5, subsets=20, ablation="patching"))]
    fn adversarial_ablation(
        &self,
        py: Python<'_>,
        circuit: &Circuit,
        steps: usize,
        subsets: usize,
        ablation: &str,
    ) -> PyResult<(f64, f64)> {
        self.ablating(py, ablation, |patching| {
            let settings = Adversary::new().steps(steps).random_subsets(subsets);
            let worst = patching.adversarial_ablation(&circuit.edges, &settings)?;
            Ok((worst.all, worst.worst))
        })
    }
}
