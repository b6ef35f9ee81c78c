//! Circuits of heads, MLPs, neurons and latents.

use hooklens::circuits::{NodeCircuit as Nodes, Selection};
use hooklens::patching::{Patching, PatchingResult};
use hooklens::{Error, HookedTransformer};
use hooklens_analysis::circuits::KindOfNodes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::circuits::{Run, faithfulness_of};
use crate::error::raise;
use crate::labeled::Labeled;
use crate::patching::PatchingTask;

/// Nodes of one kind with the effect of ablating each.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct NodeScores {
    all: Nodes,
    scores: PatchingResult,
}

#[pymethods]
impl NodeScores {
    /// Mean effects, with the axes of the nodes.
    #[getter]
    fn effects(&self) -> Labeled {
        Labeled::new(self.scores.effect())
    }

    /// The circuit of the best nodes: `top` by magnitude or `most-helpful` by sign.
    #[pyo3(signature = (count, selection="top"))]
    fn circuit(&self, py: Python<'_>, count: usize, selection: &str) -> PyResult<NodeCircuit> {
        let selection = match selection {
            "top" => Selection::Top,
            "most-helpful" => Selection::MostHelpful,
            other => {
                let message = format!("selection must be \"top\" or \"most-helpful\", not {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        let chosen = self.all.best(&self.scores, selection, count).map_err(|error| raise(py, error))?;
        Ok(NodeCircuit { nodes: chosen })
    }

    /// Reads a circuit of these nodes.
    fn circuit_from_json(&self, py: Python<'_>, text: &str) -> PyResult<NodeCircuit> {
        let nodes = Nodes::from_json(&self.all, text).map_err(|error| raise(py, error))?;
        Ok(NodeCircuit { nodes })
    }
}

/// Heads, MLPs, neurons or latents that are kept while the others are ablated.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct NodeCircuit {
    nodes: Nodes,
}

#[pymethods]
impl NodeCircuit {
    /// The names of the nodes.
    fn names(&self) -> Vec<String> {
        self.nodes.names()
    }

    /// The nodes, each as one index per axis.
    fn nodes(&self) -> Vec<Vec<usize>> {
        self.nodes.nodes().collect()
    }

    /// The nodes that are not in the circuit.
    fn complement(&self) -> Self {
        Self { nodes: self.nodes.complement() }
    }

    fn to_json(&self) -> String {
        self.nodes.to_json()
    }

    fn __len__(&self) -> usize {
        self.nodes.len()
    }

    fn __repr__(&self) -> String {
        self.nodes.to_string()
    }
}

fn kind(name: &str) -> hooklens::Result<KindOfNodes> {
    Ok(match name {
        "heads" => KindOfNodes::Heads,
        "mlps" => KindOfNodes::Mlps,
        "neurons" => KindOfNodes::Neurons,
        "latents" => KindOfNodes::Latents,
        other => {
            return Err(Error::Other(format!("nodes must be heads, mlps, neurons or latents, not {other:?}").into()));
        }
    })
}

#[pymethods]
impl PatchingTask {
    /// The effect of ablating each node, estimated from one gradient or exact.
    #[pyo3(signature = (nodes, *, by_position=false, method="attribution", ablation="patching"))]
    fn node_scores(
        &self,
        py: Python<'_>,
        nodes: &str,
        by_position: bool,
        method: &str,
        ablation: &str,
    ) -> PyResult<NodeScores> {
        self.ablating(py, ablation, |patching: &Patching<'_, HookedTransformer>| {
            let kind = kind(nodes)?;
            let sites = kind.sites(by_position);
            let scores = match method {
                "attribution" => patching.attribution(kind.points())?.sweep(&sites)?,
                "exact" => patching.sweep(&sites)?,
                other => {
                    let message = format!("method must be \"attribution\" or \"exact\", not {other:?}");
                    return Err(Error::Other(message.into()));
                }
            };
            Ok(NodeScores { all: patching.nodes(&sites)?, scores })
        })
    }

    /// Faithfulness of each circuit, with all other nodes of its kind ablated, and its 95 % interval over the examples if
    /// there is more than one.
    #[pyo3(signature = (circuits, ablation="patching"))]
    fn run_nodes(&self, py: Python<'_>, circuits: Vec<Py<NodeCircuit>>, ablation: &str) -> PyResult<Vec<Run>> {
        let circuits: Vec<Nodes> = circuits.iter().map(|circuit| circuit.get().nodes.clone()).collect();
        self.ablating(py, ablation, |patching| faithfulness_of(&patching.run_nodes(&circuits)?))
    }
}
