//! The strongest paths of a graph.

use std::fmt;

use super::attribution_graph::{AttributionGraph, GraphEdge, NodeKind, PrunedGraph};
use crate::error::GraphError;
use hooklens_model::error::Result;

/// A path from a token, position or error node to a target. Paths are ranked by the product of their edges' shares,
/// where an edge's share is its fraction of the effects on the edge's target.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GraphPath {
    /// Indices of the nodes, target first.
    pub nodes: Vec<usize>,
    /// The product of the edges' shares.
    pub share: f64,
    words: String,
}

/// Formats the path's nodes, from its start to the target: `token "Mary" at 1 -> layer 2 feature 77 at 14 " to" -> …`.
impl fmt::Display for GraphPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl AttributionGraph {
    /// The strongest paths to a target in a pruned graph: the best path through each of the target's inputs, strongest
    /// first.
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a pruned graph of another graph, [`GraphError::Node`] if there is no such node.
    pub fn paths(&self, pruned: &PrunedGraph, target: usize, count: usize) -> Result<Vec<GraphPath>> {
        self.check_pruned(pruned)?;
        if target >= self.nodes().len() {
            let near = vec![format!("a node from 0 to {}", self.nodes().len() - 1)];
            return Err(GraphError::Node { node: target.to_string(), near }.into());
        }
        let mut inputs: Vec<Vec<GraphEdge>> = vec![Vec::new(); self.nodes().len()];
        for edge in &pruned.edges {
            inputs[edge.target].push(*edge);
        }
        // The best path from each node back to an input: its share and first edge. Sources come before their targets.
        let mut best: Vec<(f64, Option<GraphEdge>)> = vec![(0.0, None); self.nodes().len()];
        let mut order: Vec<usize> = pruned.nodes.clone();
        order.sort_by_key(|node| (self.is_input(*node), std::cmp::Reverse(*node)));
        for node in order.into_iter().rev() {
            if self.is_input(node) {
                best[node] = (1.0, None);
                continue;
            }
            let size = self.size(node);
            for edge in &inputs[node] {
                let share = f64::from(edge.weight.abs()) / size * best[edge.source].0;
                if share > best[node].0 {
                    best[node] = (share, Some(*edge));
                }
            }
        }
        let size = self.size(target);
        let mut paths: Vec<GraphPath> = inputs[target]
            .iter()
            .map(|first| {
                let share = f64::from(first.weight.abs()) / size * best[first.source].0;
                let mut nodes = vec![target, first.source];
                let mut at = first.source;
                while let Some(edge) = best[at].1 {
                    nodes.push(edge.source);
                    at = edge.source;
                }
                let words: Vec<String> = nodes.iter().rev().map(|node| self.words(*node)).collect();
                GraphPath { nodes, share, words: words.join(" -> ") }
            })
            .filter(|path| path.share > 0.0)
            .collect();
        paths.sort_by(|a, b| b.share.total_cmp(&a.share));
        paths.truncate(count);
        Ok(paths)
    }

    fn is_input(&self, node: usize) -> bool {
        matches!(self.nodes()[node].kind, NodeKind::Token { .. } | NodeKind::Position | NodeKind::Error)
    }

    /// The sum of the magnitudes of the effects on a node.
    pub(super) fn size(&self, node: usize) -> f64 {
        let effects = self.effects_on(node).unwrap_or_default();
        effects.iter().map(|x| f64::from(x.abs())).sum::<f64>().max(1e-10)
    }
}
