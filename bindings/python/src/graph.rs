//! Attribution graphs.

use std::path::PathBuf;

use hooklens::attribution::graph::{
    AttributionGraph as Graph, FeatureEdit, GraphFile, GraphOptions, GraphTarget, Hold, Replacement, intervene,
};
use hooklens::features::Transcoders;
use numpy::{PyArray1, ToPyArray};
use pyo3::prelude::*;

use crate::array::Array;
use crate::enter::{check_signals, enter};
use crate::input::Given;
use crate::model::Model;
use crate::show::{Bundle, bundle};

/// The direct effects between features, tokens, errors and logits of one prompt.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct AttributionGraph {
    graph: Graph,
}

/// A node: kind, layer, position, unit, activation, label, cumulative influence.
type Node = (String, Option<usize>, usize, Option<usize>, Option<f32>, String, f32);

/// Indices of nodes, and edges: source, target, effect.
type Pruned = (Vec<usize>, Vec<(usize, usize, f32)>);

fn replacement_of(dictionaries: &Option<PathBuf>, neurons: Option<usize>) -> hooklens::Result<Replacement> {
    match (dictionaries, neurons) {
        (Some(_), Some(_)) => Err(hooklens::Error::Other("give either transcoders or neurons, not both".into())),
        (Some(path), None) => Ok(Replacement::transcoders(Transcoders::open(path)?)),
        (None, neurons) => Ok(Replacement::neurons(neurons.unwrap_or(8))),
    }
}

#[pymethods]
impl AttributionGraph {
    /// Traces a prompt. Features are latents of transcoders, or neurons. `answer` and `wrong` choose the targets; by
    /// default, they are the most likely tokens.
    #[new]
    #[pyo3(signature = (model, prompt, *, transcoders=None, neurons=None, answer=None, wrong=None, max_nodes=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        model: &Model,
        prompt: Given,
        transcoders: Option<PathBuf>,
        neurons: Option<usize>,
        answer: Option<String>,
        wrong: Option<String>,
        max_nodes: Option<usize>,
    ) -> PyResult<Self> {
        let model = model.shared();
        let graph = enter(py, || {
            let mut options = GraphOptions::new();
            if let Some(answer) = answer {
                options = options.target(match wrong {
                    Some(wrong) => GraphTarget::difference(&model, &answer, &wrong)?,
                    None => GraphTarget::token(&model, &answer)?,
                });
            }
            if let Some(count) = max_nodes {
                options = options.max_nodes(count);
            }
            let replacement = replacement_of(&transcoders, neurons)?;
            Graph::with_progress(&model, prompt.into_input(None)?, &replacement, &options, |_| check_signals())
        })?;
        Ok(Self { graph })
    }

    /// All nodes; targets come last.
    fn nodes(&self) -> Vec<Node> {
        let node = |node: &hooklens::attribution::graph::GraphNode| {
            let kind = format!("{:?}", node.kind);
            let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
            let (layer, position) = (node.layer, node.position);
            (kind, layer, position, node.unit(), node.activation, node.label.clone(), node.influence)
        };
        self.graph.nodes().iter().map(node).collect()
    }

    /// Direct effects of all nodes except targets on one node; `None` for a node without inputs.
    fn effects_on<'py>(&self, py: Python<'py>, node: usize) -> Option<Bound<'py, PyArray1<f32>>> {
        self.graph.effects_on(node).map(|effects| effects.to_pyarray(py))
    }

    /// The replacement and completeness scores.
    fn scores(&self) -> (f64, f64) {
        let scores = self.graph.scores();
        (scores.replacement, scores.completeness)
    }

    /// The largest relative difference between a node's value in the model and the sum of its constant and the effects
    /// on it.
    #[getter]
    fn deviation(&self) -> f32 {
        self.graph.deviation()
    }

    /// Prunes the graph: indices of the nodes that account for `node_share` of the influence, and the edges (source,
    /// target, effect) that account for `edge_share`.
    #[pyo3(signature = (node_share=0.8, edge_share=0.98))]
    fn prune(&self, py: Python<'_>, node_share: f64, edge_share: f64) -> PyResult<Pruned> {
        enter(py, || {
            let pruned = self.graph.prune(node_share, edge_share)?;
            let edges = pruned.edges.iter().map(|edge| (edge.source, edge.target, edge.weight)).collect();
            Ok((pruned.nodes, edges))
        })
    }

    /// Writes the pruned graph: a page (`.html`), or Neuronpedia's JSON.
    #[pyo3(signature = (path, node_share=0.8, edge_share=0.98))]
    fn save(&self, py: Python<'_>, path: PathBuf, node_share: f64, edge_share: f64) -> PyResult<()> {
        enter(py, || {
            let pruned = self.graph.prune(node_share, edge_share)?;
            GraphFile::new(&self.graph, &pruned)?.save(&path)
        })
    }

    fn mimebundle(&self) -> PyResult<Bundle> {
        bundle(&self.graph)
    }
}

#[pymethods]
impl Model {
    /// Logits of a run in which features are set: `(layer, position, unit, value)`.
    #[pyo3(signature = (prompt, edits, *, transcoders=None, neurons=None))]
    fn intervene(
        &self,
        py: Python<'_>,
        prompt: Given,
        edits: Vec<(usize, usize, usize, f32)>,
        transcoders: Option<PathBuf>,
        neurons: Option<usize>,
    ) -> PyResult<Array> {
        let model = self.shared();
        enter(py, || {
            let set = |(layer, position, unit, value)| FeatureEdit::set(layer, position, unit, value);
            let edits: Vec<FeatureEdit> = edits.into_iter().map(set).collect();
            let replacement = replacement_of(&transcoders, neurons)?;
            let logits = intervene(&model, prompt.into_input(None)?, &replacement, &edits, Hold::Nothing)?;
            Array::shared(&logits.into())
        })
    }
}
