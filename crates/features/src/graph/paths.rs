//! The strongest paths of a graph, in words.

use super::attribution_graph::{AttributionGraph, GraphEdge, NodeKind, PrunedGraph};

/// A way from a token, a position or an error to a target, by the shares of each node's input that come along it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GraphPath {
    /// Nodes, the target first.
    pub nodes: Vec<usize>,
    /// Direct effects, of each node on the one before it.
    pub effects: Vec<f32>,
    /// The product of the shares.
    pub share: f64,
}

impl AttributionGraph {
    /// The strongest ways to a target through what was kept: for each of its inputs the best one, the strongest first.
    pub fn paths(&self, pruned: &PrunedGraph, target: usize, count: usize) -> Vec<GraphPath> {
        let mut inputs: Vec<Vec<GraphEdge>> = vec![Vec::new(); self.nodes().len()];
        for edge in pruned.edges() {
            inputs[edge.target].push(*edge);
        }
        // The best way down from each node: its share, and the edge it begins with. Sources come before what they act on.
        let mut best: Vec<(f64, Option<GraphEdge>)> = vec![(0.0, None); self.nodes().len()];
        let mut order: Vec<usize> = pruned.nodes().to_vec();
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
                let (mut nodes, mut effects) = (vec![target, first.source], vec![first.weight]);
                let mut at = first.source;
                while let Some(edge) = best[at].1 {
                    nodes.push(edge.source);
                    effects.push(edge.weight);
                    at = edge.source;
                }
                GraphPath { nodes, effects, share }
            })
            .filter(|path| path.share > 0.0)
            .collect();
        paths.sort_by(|a, b| b.share.total_cmp(&a.share));
        paths.truncate(count);
        paths
    }

    fn is_input(&self, node: usize) -> bool {
        matches!(self.nodes()[node].kind, NodeKind::Token { .. } | NodeKind::Position | NodeKind::Error)
    }

    /// The sum of magnitudes of what acts on a node.
    pub(super) fn size(&self, node: usize) -> f64 {
        let effects = self.effects_on(node).unwrap_or_default();
        effects.iter().map(|x| f64::from(x.abs())).sum::<f64>().max(1e-10)
    }
}
