//! [`Circuit`]: a set of edges of a model.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fmt;

use ndarray::Array2;

use crate::attribution::{EdgeGraph, EdgeScores, Sender};
use crate::error::CircuitError;
use crate::patching::Receiver;
use hooklens_model::error::Result;

/// A part of a model that is claimed to do a task: a set of edges between components. These edges are kept, and all
/// others are ablated.
///
/// ```
/// use hooklens::attribution::Gradient;
/// use hooklens::circuits::Circuit;
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let scores = patching.edges(Gradient::Integrated(5))?;
/// let circuit = Circuit::top(&scores, 60)?.pruned();
/// println!("{circuit}: {:.2}", patching.run_circuits(std::slice::from_ref(&circuit))?.faithfulness()?[0]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circuit {
    graph: EdgeGraph,
    /// Whether each edge is in the circuit, `[sender, receiver]`.
    kept: Array2<bool>,
}

impl Circuit {
    /// The circuit without edges.
    pub fn empty(graph: &EdgeGraph) -> Self {
        Self { graph: graph.clone(), kept: Array2::default((graph.senders().len(), graph.receivers().len())) }
    }

    /// The circuit with all edges of the model.
    pub fn full(graph: &EdgeGraph) -> Self {
        Self::of_places(graph, graph.places())
    }

    /// A circuit of these edges.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeGraph, Sender};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::patching::Receiver;
    /// use hooklens::prelude::*;
    /// let graph = EdgeGraph::of(&HookedTransformer::from_pretrained("embedded:ioi")?)?;
    /// let direct = Circuit::of_edges(&graph, [(Sender::Head(3, 0), Receiver::Logits)])?;
    /// assert_eq!(direct.len(), 1);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for an edge that the model lacks.
    pub fn of_edges(
        graph: &EdgeGraph,
        edges: impl IntoIterator<Item = (Sender, Receiver)>,
    ) -> Result<Self, CircuitError> {
        let places: Vec<_> =
            edges.into_iter().map(|(sender, receiver)| graph.place(sender, receiver)).collect::<Result<_, _>>()?;
        Ok(Self::of_places(graph, places))
    }

    /// A circuit of nodes: all edges from these heads and MLPs, and from the embedding, are kept. Running it ablates
    /// the outputs of all other heads and MLPs for every reader.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeGraph, Sender};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::prelude::*;
    /// let graph = EdgeGraph::of(&HookedTransformer::from_pretrained("embedded:ioi")?)?;
    /// let last = Circuit::of_nodes(&graph, [Sender::Mlp(3)])?;
    /// assert_eq!(last.len(), 53 + 1); // from the embedding to every reader, and from the MLP to the logits
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for a node that the model lacks.
    pub fn of_nodes(graph: &EdgeGraph, nodes: impl IntoIterator<Item = Sender>) -> Result<Self, CircuitError> {
        let mut kept = BTreeSet::new();
        for node in nodes.into_iter().chain([Sender::Embed]) {
            kept.insert(graph.place(node, Receiver::Logits)?.0);
        }
        Ok(Self::of_places(graph, graph.places().filter(|(from, _)| kept.contains(from))))
    }

    /// The `count` edges with the largest mean scores by magnitude.
    ///
    /// # Errors
    /// Fails if a score is not finite.
    pub fn top(scores: &EdgeScores, count: usize) -> Result<Self, CircuitError> {
        let graph = scores.graph();
        let places: Vec<_> = ranked(scores)?.into_iter().take(count).map(|(place, _)| place).collect();
        Ok(Self::of_places(&graph, places))
    }

    /// The `count` edges with the lowest mean scores: those whose ablation lowers the metric most. The scores must be
    /// effects of ablating edges in clean runs, from [`Patching::ablating`](crate::patching::Patching::ablating) or
    /// [`Patching::reversed`](crate::patching::Patching::reversed). With `Patching::new` alone, helpful edges have the
    /// highest scores.
    ///
    /// # Errors
    /// Fails if a score is not finite.
    pub fn most_helpful(scores: &EdgeScores, count: usize) -> Result<Self, CircuitError> {
        let ranked = helpful(scores)?.into_iter().take(count);
        Ok(Self::of_places(&scores.graph(), ranked.map(|(place, _)| place)))
    }

    /// The edges whose mean score has at least this magnitude.
    ///
    /// # Errors
    /// Fails if a score is not finite.
    pub fn above(scores: &EdgeScores, threshold: f64) -> Result<Self, CircuitError> {
        let ranked = ranked(scores)?;
        let above = ranked.into_iter().take_while(|(_, score)| *score >= threshold).map(|(place, _)| place);
        Ok(Self::of_places(&scores.graph(), above))
    }

    /// Grows a circuit of `count` edges from the logits backward: each step adds the edge with the largest mean score
    /// by magnitude among the edges into components that the circuit already contains. An edge from a head makes the
    /// edges into the head's queries, keys and values available.
    ///
    /// # Errors
    /// Fails if a score is not finite.
    pub fn greedy(scores: &EdgeScores, count: usize) -> Result<Self, CircuitError> {
        Ok(Self::grown(&scores.graph(), &ranked(scores)?, count))
    }

    /// Like [`Circuit::greedy`], but each step adds the edge with the lowest mean score: the one whose ablation lowers the
    /// metric most.
    ///
    /// # Errors
    /// Fails if a score is not finite.
    pub fn greedy_helpful(scores: &EdgeScores, count: usize) -> Result<Self, CircuitError> {
        Ok(Self::grown(&scores.graph(), &helpful(scores)?, count))
    }

    /// Grows a circuit from the logits backward, adding edges in the order in which they are ranked.
    fn grown(graph: &EdgeGraph, ranked: &[Ranked], count: usize) -> Self {
        let mut circuit = Self::empty(graph);
        let read_by = read_by(graph);
        // The ranks of the edges into each receiver.
        let mut into = vec![Vec::new(); graph.receivers().len()];
        for (rank, ((_, to), _)) in ranked.iter().enumerate() {
            into[*to].push(Reverse(rank));
        }
        let end = graph.receivers().iter().position(|own| *own == Receiver::Logits);
        let mut open: BinaryHeap<Reverse<usize>> =
            end.into_iter().flat_map(|end| std::mem::take(&mut into[end])).collect();
        for _ in 0..count {
            let Some(Reverse(rank)) = open.pop() else { break };
            let place = ranked[rank].0;
            circuit.kept[place] = true;
            for to in &read_by[place.0] {
                open.extend(std::mem::take(&mut into[*to]));
            }
        }
        circuit
    }

    pub(crate) fn of_places(graph: &EdgeGraph, places: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut circuit = Self::empty(graph);
        for (from, to) in places {
            circuit.kept[[from, to]] = true;
        }
        circuit
    }

    /// The graph that the circuit is a part of.
    pub fn graph(&self) -> &EdgeGraph {
        &self.graph
    }

    /// The edges of the circuit, sorted by sender.
    pub fn edges(&self) -> impl Iterator<Item = (Sender, Receiver)> {
        self.places().map(|(from, to)| (self.graph.senders()[from], self.graph.receivers()[to]))
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.graph.places().filter(|place| self.kept[*place])
    }

    pub(crate) fn keeps(&self, place: (usize, usize)) -> bool {
        self.kept[place]
    }

    /// Number of edges.
    pub fn len(&self) -> usize {
        self.places().count()
    }

    /// Whether the circuit has no edges.
    pub fn is_empty(&self) -> bool {
        self.places().next().is_none()
    }

    /// Whether the circuit has this edge.
    ///
    /// # Errors
    /// Fails for an edge that the model lacks.
    pub fn contains(&self, sender: Sender, receiver: Receiver) -> Result<bool, CircuitError> {
        Ok(self.kept[self.graph.place(sender, receiver)?])
    }

    /// The edges of the model that are not in the circuit.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self::of_places(&self.graph, self.graph.places().filter(|place| !self.kept[*place]))
    }

    /// Removes edges that are not on a path from the embedding to the logits.
    ///
    /// ```
    /// use hooklens::attribution::{EdgeGraph, Sender};
    /// use hooklens::circuits::Circuit;
    /// use hooklens::patching::Receiver;
    /// use hooklens::prelude::*;
    /// let graph = EdgeGraph::of(&HookedTransformer::from_pretrained("embedded:ioi")?)?;
    /// let (head, mlp) = (Sender::Head(0, 1), Sender::Mlp(2));
    /// let edges = [(Sender::Embed, Receiver::Mlp(2)), (mlp, Receiver::Logits), (head, Receiver::Mlp(2))];
    /// let circuit = Circuit::of_edges(&graph, edges)?.pruned();
    /// assert_eq!(circuit.len(), 2); // head 0.1 has no incoming edges
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn pruned(&self) -> Self {
        let (outputs, read_by) = (self.graph.outputs(), read_by(&self.graph));
        let mut edges: Vec<(usize, usize)> = self.places().collect();
        loop {
            let (mut reads, mut writes) = (vec![false; outputs.len()], vec![false; read_by.len()]);
            for (from, to) in &edges {
                (writes[*from], reads[*to]) = (true, true);
            }
            let fed =
                |from: usize| self.graph.senders()[from] == Sender::Embed || read_by[from].iter().any(|to| reads[*to]);
            let used = |to: usize| {
                self.graph.receivers()[to] == Receiver::Logits || outputs[to].iter().any(|from| writes[*from])
            };
            let before = edges.len();
            edges.retain(|(from, to)| fed(*from) && used(*to));
            if edges.len() == before {
                return Self::of_places(&self.graph, edges);
            }
        }
    }

    /// Jaccard similarity with another circuit: the number of common edges divided by the number of edges in either.
    /// It is 1 if both are empty.
    ///
    /// # Errors
    /// Fails if the circuits belong to different models.
    pub fn jaccard(&self, other: &Self) -> Result<f64, CircuitError> {
        self.graph.check_same(&other.graph)?;
        let both = self.places().filter(|place| other.kept[*place]).count();
        let either = self.len() + other.len() - both;
        Ok(if either == 0 { 1.0 } else { both as f64 / either as f64 })
    }
}

/// Fails if scores belong to another model than a circuit, or to other edges.
///
/// # Errors
/// [`CircuitError::OtherGraph`] or [`CircuitError::OtherModel`].
pub fn check_scored(circuit: &Circuit, scores: &EdgeScores) -> Result<(), CircuitError> {
    circuit.graph.check_same(&scores.graph())
}

/// For each sender, the indices of the receivers that its output is computed from.
fn read_by(graph: &EdgeGraph) -> Vec<Vec<usize>> {
    let mut read_by = vec![Vec::new(); graph.senders().len()];
    for (to, senders) in graph.outputs().into_iter().enumerate() {
        for from in senders {
            read_by[from].push(to);
        }
    }
    read_by
}

/// An edge and its mean score, or the magnitude of its mean score.
type Ranked = ((usize, usize), f64);

/// All edges with the magnitudes of their mean scores, in descending order.
fn ranked(scores: &EdgeScores) -> Result<Vec<Ranked>, CircuitError> {
    let mut ranked = scored(scores)?;
    ranked.iter_mut().for_each(|(_, score)| *score = score.abs());
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(ranked)
}

/// All edges with their mean scores, in ascending order.
fn helpful(scores: &EdgeScores) -> Result<Vec<Ranked>, CircuitError> {
    let mut ranked = scored(scores)?;
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(ranked)
}

/// All edges with their mean scores.
fn scored(scores: &EdgeScores) -> Result<Vec<Ranked>, CircuitError> {
    let (graph, mean) = (scores.graph(), scores.mean());
    let of = |(from, to): (usize, usize)| {
        let value = mean.values()[[from, to]];
        if value.is_finite() {
            return Ok(((from, to), value));
        }
        Err(CircuitError::NotFinite { place: graph.edge_name((from, to)), value })
    };
    graph.places().map(of).collect()
}

impl fmt::Display for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "circuit of {} of {} edges", self.len(), self.graph.len())
    }
}
