//! Circuits of the features in a graph.

use hooklens_analysis::circuits::NodeCircuit;

use super::attribution_graph::{AttributionGraph, GraphNode, NodeKind};
use crate::error::GraphError;
use hooklens_model::error::Result;

impl AttributionGraph {
    /// Makes a circuit of the features among these nodes, such as the nodes of a pruned graph. Running it ablates all other
    /// features at the sites of `all`, which must have one node per position and feature.
    ///
    /// ```
    /// use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
    /// use hooklens::features::{SpliceDictionary, Transcoders};
    /// use hooklens::hook::Axis;
    /// use hooklens::patching::Sites;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let transcoders = Transcoders::open("embedded:ioi-transcoders")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let replacement = Replacement::transcoders(transcoders.clone());
    /// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
    ///
    /// let spliced = model.splice_transcoders(&transcoders)?; // the latents are hook points
    /// let patching = spliced.ablating(prompt, Ablation::Zero).logit_diff("Mary", "John")?;
    /// let all = patching.nodes(&Sites::new("*hook_sae_acts_post").per([Axis::Pos, Axis::Feature]))?;
    /// let circuit = graph.circuit(&graph.prune(0.8, 0.98)?.nodes, &all)?;
    /// println!("{circuit} recovers {:.2}", patching.run_nodes(&[circuit.clone()])?.faithfulness()?[0]);
    /// # assert!(!circuit.is_empty() && circuit.len() < all.len() / 10);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a node that the graph lacks, and for sites that lack the graph's features or have
    /// different positions or tokens.
    pub fn circuit(&self, nodes: &[usize], all: &NodeCircuit) -> Result<NodeCircuit> {
        let axes: Vec<&str> = all.axes().iter().map(|axis| axis.name.as_str()).collect();
        let wrong =
            |what: &'static str, given: String, wanted: &'static str| GraphError::Setting { what, given, wanted };
        if axes.len() != 3 || axes[1] != "pos" {
            let given = axes.join(", ");
            return Err(wrong("the list of the circuit's axes", given, "layer or point, pos, and the feature").into());
        }
        let labels = &all.axes()[1].labels;
        if labels.len() != self.tokens().len() {
            let (given, wanted) = (format!("{}", labels.len()), "the number of tokens of the graph's prompt");
            return Err(wrong("the number of positions", given, wanted).into());
        }
        for (place, (label, text)) in labels.iter().zip(&self.token_texts).enumerate() {
            if self.prompts == 1 && *label != place.to_string() && *label != format!("{place} {text}") {
                return Err(wrong("a position label of the circuit", label.clone(), "a position of the graph").into());
            }
        }
        let mut places = Vec::new();
        for number in nodes {
            let missing = || wrong("a node index", number.to_string(), "less than the graph's number of nodes");
            let node = self.nodes.get(*number).ok_or_else(missing)?;
            if let Some(unit) = node.unit() {
                places.push([point_of(node, all.points())?, node.position, unit]);
            }
        }
        Ok(all.only(places)?)
    }
}

/// The index, in `points`, of the hook point of a feature.
fn point_of(node: &GraphNode, points: &[String]) -> Result<usize, GraphError> {
    let suffix = match node.kind {
        NodeKind::Neuron { .. } => ".mlp.hook_post",
        _ => ".hook_sae_acts_post",
    };
    let prefix = format!("blocks.{}.", node.layer.unwrap_or(0));
    let is = |(_, point): &(usize, &String)| point.starts_with(&prefix) && point.ends_with(suffix);
    let found: Vec<usize> = points.iter().enumerate().filter(is).map(|(place, _)| place).collect();
    match found[..] {
        [one] => Ok(one),
        _ => Err(GraphError::Setting {
            what: "the number of hook points for one layer's features",
            given: format!("{} ({prefix}*{suffix})", found.len()),
            wanted: "1",
        }),
    }
}
