//! Effects on a node, split by attention head.

use super::active::Active;
use super::attribution_graph::{AttributionGraph, GraphDetails, GraphNode, NodeKind};
use super::capture::Captured;
use super::frozen::Batch;
use super::replacement::Replacement;
use super::site::{POST, STEPS};
use super::target::prepared_targets;
use crate::error::GraphError;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// The effects on one node, split by the attention head that carried each. An effect carried by several heads in
/// sequence is attributed to the one nearest to the node.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HeadEffects {
    heads: usize,
    nodes: usize,
    /// Effects by head, `[layer * head, node]`.
    carried: Vec<f32>,
    /// Effects carried by no head, `[node]`.
    direct: Vec<f32>,
}

impl HeadEffects {
    /// The effect of a source node carried by one head; `None` if there is no such head or node.
    fn carried(&self, layer: usize, head: usize, source: usize) -> Option<f32> {
        let row = (head < self.heads && source < self.nodes).then(|| layer * self.heads + head)?;
        self.carried.get(row * self.nodes + source).copied()
    }

    /// The effect of a source node carried by no head, through the residual stream only.
    pub fn direct(&self, source: usize) -> Option<f32> {
        self.direct.get(source).copied()
    }

    /// The heads that carried most of a source node's effect, as layer, head and effect.
    pub fn strongest(&self, source: usize, count: usize) -> Vec<(usize, usize, f32)> {
        let all = 0..self.carried.len() / self.nodes.max(1);
        let mut heads: Vec<(usize, usize, f32)> = all
            .filter_map(|row| {
                let carried = self.carried(row / self.heads, row % self.heads, source)?;
                (carried != 0.0).then_some((row / self.heads, row % self.heads, carried))
            })
            .collect();
        heads.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
        heads.truncate(count);
        heads
    }
}

impl AttributionGraph {
    /// For each node of this graph, its column in a prompt's rows.
    pub(super) fn columns_in(&self, active: &Active) -> Vec<usize> {
        let column = |(number, node): (usize, &GraphNode)| match (node.site, node.unit()) {
            (Some(site), Some(unit)) => active.find(site, node.position, unit as u32),
            _ => Some(active.count() + number - self.features),
        };
        self.nodes()[..self.first_logit()].iter().enumerate().filter_map(column).collect()
    }

    /// Splits the effects on a feature or target by head. The effects carried by heads and the direct effect sum to the
    /// whole effect.
    ///
    /// ```
    /// # use hooklens::attribution::graph::{AttributionGraph, GraphOptions, GraphTarget, Replacement};
    /// # use hooklens::features::Transcoders;
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
    /// let options = GraphOptions::new().target(GraphTarget::token(&model, "Mary")?);
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let graph = AttributionGraph::new(&model, prompt, &replacement, &options)?;
    /// let target = graph.nodes().len() - 1;
    /// let heads = graph.heads(&model, &replacement, target)?;
    /// let mary = graph.nodes().iter().position(|node| node.label == "Mary" && node.layer.is_none()).unwrap();
    /// for (layer, head, carried) in heads.strongest(mary, 3) {
    ///     println!("L{layer}H{head} carried {carried:+.2} from the token \"Mary\"");
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Node`] for a node without inputs; otherwise the same as [`AttributionGraph::new`].
    pub fn heads(&self, model: &HookedTransformer, replacement: &Replacement, node: usize) -> Result<HeadEffects> {
        let captured = self.captured_again(model, replacement, self.left_out())?;
        let Captured { frozen, sites, active, .. } = &captured;
        let own = self.nodes().get(node).filter(|_| self.row_of(node).is_some() && self.prompts() == 1);
        let missing = || GraphError::Node {
            node: node.to_string(),
            near: vec!["a feature or target in a graph of one prompt".into()],
        };
        let own = own.ok_or_else(missing)?;
        let positions = [own.position];
        let batch = match (own.kind, own.site, own.unit()) {
            (NodeKind::Logit { .. }, ..) => {
                let targets = prepared_targets(model, &captured, &self.chosen_targets, (1, 1.0))?;
                let width = frozen.width;
                let place = node - self.first_logit();
                let vectors = targets.vectors[place * width..][..width].to_vec();
                Batch { vectors, positions: &positions, start: Some((frozen.layers.len() - 1) * STEPS + POST) }
            }
            (_, Some(site), Some(unit)) => {
                let (vectors, _) = sites[site].reads(&[unit as u32], &positions)?;
                Batch { vectors, positions: &positions, start: sites[site].start }
            }
            _ => return Err(missing().into()),
        };
        let heads = model.config().n_heads();
        let columns = self.columns_in(active);
        let nodes = columns.len();
        let picked = |row: &[f32]| columns.iter().map(|column| row[*column]).collect::<Vec<f32>>();
        let mut made =
            HeadEffects { heads, nodes, carried: vec![0.0; frozen.layers.len() * heads * nodes], direct: Vec::new() };
        let all = frozen.columns(active);
        for (layer, effects) in frozen.effects_by_head(batch, active, heads) {
            if layer == frozen.layers.len() {
                made.direct = picked(&effects.rows);
                continue;
            }
            for (head, row) in effects.rows.chunks_exact(all).enumerate() {
                made.carried[(layer * heads + head) * nodes..][..nodes].copy_from_slice(&picked(row));
            }
        }
        Ok(made)
    }
}
