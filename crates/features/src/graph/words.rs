//! Descriptions of nodes.

use std::collections::BTreeMap;

use super::attribution_graph::{AttributionGraph, GraphDetails, NodeKind};
use crate::most_moved;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, Identified};
use hooklens_model::tokens::token_text;

/// For each feature node, the tokens it promotes most and the tokens it suppresses most.
pub type FeatureTokens = BTreeMap<usize, [Vec<String>; 2]>;

/// The tokens whose logits each feature raises most through its direct output, and the tokens whose logits it
/// lowers most. Nodes that are not features are skipped.
///
/// ```
/// # use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
/// # use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let graph = AttributionGraph::new(&model, "When Mary and John went", &Replacement::neurons(8), &GraphOptions::new())?;
/// let tokens = hooklens_features::graph::feature_tokens(&graph, &model, &[0, 1], 3)?;
/// assert_eq!(tokens[&0][0].len(), 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// [`GraphError::Setting`](crate::error::GraphError::Setting) for a model that the graph was not made with; also fails
/// if weight matrices cannot be read.
pub fn feature_tokens(
    graph: &AttributionGraph,
    model: &HookedTransformer,
    nodes: &[usize],
    count: usize,
) -> Result<FeatureTokens> {
    graph.check_model(&model.identity())?;
    let mut by_site: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for node in nodes {
        let Some(own) = graph.nodes().get(*node) else { continue };
        if let (Some(site), Some(unit)) = (own.site, own.unit()) {
            by_site.entry(site).or_default().push((*node, unit));
        }
    }
    let text = |id: u32| token_text(model.tokenizer().ok(), id);
    let mut tokens = FeatureTokens::new();
    for (site, own) in by_site {
        let mut which: Vec<usize> = own.iter().map(|(_, unit)| *unit).collect();
        which.sort_unstable();
        which.dedup();
        let moved = most_moved(model, &graph.units()[site], &which, count)?;
        for (node, unit) in own {
            let Ok(place) = which.binary_search(&unit) else { continue };
            let words = moved[place].clone().map(|own| own.into_iter().map(|(id, _)| text(id)).collect());
            tokens.insert(node, words);
        }
    }
    Ok(tokens)
}

impl AttributionGraph {
    /// A short description of a node: `layer 2 latent 77 at 14 " to"`.
    pub fn words(&self, node: usize) -> String {
        let Some(own) = self.nodes().get(node) else { return format!("node {node}") };
        let at = || {
            let text = self.token_texts().get(own.position).map_or("", String::as_str);
            format!("at {} {text:?}", own.position)
        };
        let layer = own.layer.unwrap_or(0);
        let label = if own.label.is_empty() { String::new() } else { format!(" ({})", own.label) };
        match own.kind {
            NodeKind::Feature { latent } => format!("layer {layer} feature {latent}{label} {}", at()),
            NodeKind::Latent { latent } => format!("layer {layer} latent {latent}{label} {}", at()),
            NodeKind::Neuron { neuron } => format!("layer {layer} neuron {neuron} {}", at()),
            NodeKind::Error => format!("layer {layer} error {}", at()),
            NodeKind::Token { .. } => format!("token {:?} at {}", own.label, own.position),
            NodeKind::Position => format!("position {}", own.position),
            NodeKind::Logit { .. } => format!("logit of {:?}", own.label),
        }
    }
}
