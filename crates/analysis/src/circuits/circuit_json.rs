//! Circuits as JSON, in hooklens's own format and in MIB's format.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Circuit;
use super::edge_names::{EdgeNames, Naming, receiver_names, sender};
use crate::attribution::{EdgeGraph, EdgeScores};
use crate::error::CircuitError;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;
use ndarray::Array2;

/// Hooklens's own format.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    /// Hash of the model's weights, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    edges: Vec<(String, String)>,
}

const FORMAT: &str = "hooklens circuit 1";

/// MIB's format (`Graph.to_json` of EAP-IG).
#[derive(Serialize, Deserialize)]
struct Mib {
    cfg: MibConfig,
    nodes: BTreeMap<String, MibNode>,
    edges: BTreeMap<String, MibEdge>,
}

#[derive(Serialize, Deserialize)]
struct MibConfig {
    n_layers: usize,
    n_heads: usize,
    parallel_attn_mlp: bool,
    #[serde(default)]
    d_model: usize,
}

#[derive(Serialize, Deserialize)]
struct MibNode {
    in_graph: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    neurons: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct MibEdge {
    #[serde(default)]
    score: Option<f64>,
    in_graph: bool,
}

impl Circuit {
    /// The circuit as JSON, with the hash of the model's weights.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeGraph, Sender};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::patching::Receiver;
    /// use hooklens::prelude::*;
    /// let graph = EdgeGraph::of(&HookedTransformer::from_pretrained("embedded:ioi")?)?;
    /// let circuit = Circuit::of_edges(&graph, [(Sender::Head(3, 0), Receiver::Logits)])?;
    /// assert_eq!(Circuit::from_json(&graph, &circuit.to_json())?, circuit);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let edges = self.edges().map(|(sender, receiver)| (sender.to_string(), receiver.to_string()));
        let model = self.graph().model().map(str::to_string);
        let stored = Stored { format: FORMAT.into(), model, edges: edges.collect() };
        serde_json::to_string_pretty(&stored).unwrap_or_default()
    }

    /// Reads a circuit of this model from [`Circuit::to_json`] or from MIB's JSON (the edges with `in_graph`).
    ///
    /// # Errors
    /// Fails if the text has neither format, if the model lacks an edge, and if the weights differ. MIB's format has no
    /// hash of the weights, so only the architecture is compared. With grouped-query attention, a file in MIB's format
    /// must treat all query heads that share keys and values alike. Circuits of neurons are refused.
    pub fn from_json(graph: &EdgeGraph, text: &str) -> Result<Self, CircuitError> {
        let value = parsed(text)?;
        if value.get("cfg").is_some() {
            let (kept, _) = mib_edges(graph, value)?;
            return Ok(Self::of_places(graph, graph.places().filter(|place| kept[*place])));
        }
        if value.get("points").is_some() {
            return Err(CircuitError::File { reason: "it is a circuit of nodes, not of edges".into() });
        }
        let stored: Stored = stored(value, FORMAT)?;
        if let (Some(given), Some(expected)) = (&stored.model, graph.model())
            && given != expected
        {
            return Err(CircuitError::OtherModel { given: excerpt(given), expected: expected.into() });
        }
        let names = EdgeNames::new(graph, Naming::Own);
        let places = stored.edges.iter().map(|(sender, receiver)| names.place(sender, receiver));
        Ok(Self::of_places(graph, places.collect::<Result<Vec<_>, _>>()?))
    }
}

impl EdgeScores {
    /// Reads scores of this model's edges from MIB's JSON, as the scores of a single example. MIB's scores say how much
    /// keeping an edge raises the metric, so their sign is reversed.
    ///
    /// # Errors
    /// Fails if the text is not in MIB's format, if an edge has no score or is missing, and if the architecture
    /// differs.
    pub fn from_mib(graph: &EdgeGraph, text: &str) -> Result<Self, CircuitError> {
        let (_, scores) = mib_edges(graph, parsed(text)?)?;
        if let Some((from, to)) = graph.places().find(|place| !scores[*place].is_finite()) {
            let reason = format!("the edge {} has no score", graph.edge_name((from, to)));
            return Err(CircuitError::File { reason });
        }
        Ok(Self::of_graph(graph, &[scores.mapv(|score| -score)]))
    }

    /// Formats the mean scores as MIB's JSON, with the edges of a circuit marked as `in_graph`. The sign of the scores
    /// is reversed: positive scores say that keeping an edge raises the metric. As for [`Circuit::most_helpful`], the
    /// scores must be effects of ablations. Query heads that share keys and values each get an equal part of the score.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeScores, Gradient};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::patching::{Ablation, Metric, Patching};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
    /// let scores = patching.edges(Gradient::AtBase)?;
    /// let circuit = Circuit::top(&scores, 40)?;
    /// let json = scores.to_mib(&model, &circuit)?;
    /// assert_eq!(Circuit::from_json(&scores.graph(), &json)?, circuit);
    /// assert_eq!(Circuit::top(&EdgeScores::from_mib(&scores.graph(), &json)?, 40)?, circuit);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the circuit or the scores belong to a different model.
    pub fn to_mib(&self, model: &HookedTransformer, circuit: &Circuit) -> Result<String> {
        let graph = EdgeGraph::of(model)?;
        graph.check_same(&self.graph())?;
        graph.check_same(circuit.graph())?;
        let mean = self.mean();
        let (mut nodes, mut edges) = (BTreeMap::new(), BTreeMap::new());
        for (from, own) in graph.senders().iter().enumerate() {
            let in_graph = circuit.places().any(|(own, _)| own == from);
            nodes.insert(sender(*own, Naming::Mib), MibNode { in_graph, neurons: None });
        }
        nodes.insert("logits".into(), MibNode { in_graph: true, neurons: None });
        for (from, to) in graph.places() {
            let names = receiver_names(&graph, to, Naming::Mib);
            // Query heads that share keys and values get equal parts of the score.
            let score = Some(-mean.values()[[from, to]] / names.len() as f64);
            for name in names {
                let edge = MibEdge { score, in_graph: circuit.keeps((from, to)) };
                edges.insert(format!("{}->{name}", sender(graph.senders()[from], Naming::Mib)), edge);
            }
        }
        let cfg = MibConfig {
            n_layers: graph.n_layers(),
            n_heads: model.config().n_heads(),
            parallel_attn_mlp: graph.is_parallel(),
            d_model: model.config().d_model(),
        };
        Ok(serde_json::to_string(&Mib { cfg, nodes, edges }).unwrap_or_default())
    }
}

/// Which edges are in the graph, and the scores of all edges, both `[sender, receiver]`. The score of an edge is NaN if
/// the file has none.
fn mib_edges(graph: &EdgeGraph, value: serde_json::Value) -> Result<(Array2<bool>, Array2<f64>), CircuitError> {
    let stored: Mib = serde_json::from_value(value).map_err(unreadable)?;
    if stored.nodes.values().any(|node| node.neurons.is_some()) {
        return Err(CircuitError::File { reason: "circuits of neurons are not supported".into() });
    }
    let is_parallel = |parallel| if parallel { "parallel" } else { "sequential" };
    if (stored.cfg.n_layers, stored.cfg.parallel_attn_mlp) != (graph.n_layers(), graph.is_parallel()) {
        let reason = format!(
            "it has {} {} layers, but the model has {} {} layers",
            stored.cfg.n_layers,
            is_parallel(stored.cfg.parallel_attn_mlp),
            graph.n_layers(),
            is_parallel(graph.is_parallel())
        );
        return Err(CircuitError::File { reason });
    }
    let shape = (graph.senders().len(), graph.receivers().len());
    let names = EdgeNames::new(graph, Naming::Mib);
    let mut seen: Array2<bool> = Array2::default(shape);
    let (mut kept, mut scores) = (Array2::default(shape), Array2::zeros(shape));
    for (name, edge) in &stored.edges {
        let ends = name.split_once("->").ok_or_else(|| CircuitError::File {
            reason: format!("`{}` is not an edge; edges are written as `a0.h1->m2`", excerpt(name)),
        })?;
        let place = names.place(ends.0, ends.1)?;
        if seen[place] && kept[place] != edge.in_graph {
            let reason = format!("query heads that share keys and values differ in `in_graph` for `{}`", excerpt(name));
            return Err(CircuitError::File { reason });
        }
        seen[place] = true;
        kept[place] = edge.in_graph;
        // Each query head has its own part of the effect of shared keys and values, so the parts are summed.
        scores[place] += edge.score.unwrap_or(f64::NAN);
    }
    if let Some((from, to)) = graph.places().find(|place| !seen[*place]) {
        let reason = format!("the edge {} is missing", graph.edge_name((from, to)));
        return Err(CircuitError::File { reason });
    }
    Ok((kept, scores))
}

pub(super) fn parsed(text: &str) -> Result<serde_json::Value, CircuitError> {
    serde_json::from_str(text).map_err(unreadable)
}

/// Reads a circuit in one of hooklens's own formats, and checks its `format` field.
pub(super) fn stored<T: DeserializeOwned>(value: serde_json::Value, expected: &str) -> Result<T, CircuitError> {
    let wrong = |reason: String| CircuitError::File { reason };
    let format = value.get("format").cloned().ok_or_else(|| wrong("it has no `format` field".into()))?;
    let stored = serde_json::from_value(value).map_err(unreadable)?;
    match format.as_str() {
        Some(format) if format != expected => {
            Err(wrong(format!("its format is `{}`, but this version reads `{expected}`", excerpt(format))))
        }
        _ => Ok(stored),
    }
}

fn unreadable(source: serde_json::Error) -> CircuitError {
    CircuitError::File { reason: excerpt(&source.to_string()) }
}

/// The beginning of a text from a file, for messages.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(200).collect()
}
