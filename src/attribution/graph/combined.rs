//! Graphs of several prompts of one template in one: their mean, or the difference of two.

use std::collections::BTreeMap;

use super::attribution_graph::{AttributionGraph, GraphNode, NodeKind};
use crate::error::{GraphError, Result};

/// Texts of one position that are shown.
const SHOWN: usize = 3;

impl AttributionGraph {
    /// The mean of graphs of prompts of as many tokens: an effect is zero where a feature is not active. Effects and constant
    /// sum to the mean pre-activation.
    ///
    /// ```
    /// # use hooklens::attribution::graph::{AttributionGraph, GraphOptions, GraphTarget, Replacement};
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let graph = |prompt: &str, answer: &str| {
    ///     let options = GraphOptions::new().target(GraphTarget::token(&model, answer)?);
    ///     AttributionGraph::new(&model, prompt, &Replacement::neurons(8), &options)
    /// };
    /// let one = graph("When Mary and John went to the store, John gave a drink to", "Mary")?;
    /// let other = graph("When Anna and Tom went to the store, Tom gave a drink to", "Anna")?;
    /// let mean = AttributionGraph::mean(&[one.clone(), other.clone()])?;
    /// let apart = one.minus(&other)?; // what one has more of
    /// assert_eq!((mean.prompts(), apart.prompts()), (2, 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Setting`] for none, and for graphs of different numbers of tokens, layers or targets, or of other places of
    /// features.
    pub fn mean(graphs: &[Self]) -> Result<Self> {
        let share = 1.0 / graphs.len().max(1) as f32;
        Self::combined(&graphs.iter().map(|graph| (share, graph)).collect::<Vec<_>>())
    }

    /// This graph's effects minus another's.
    ///
    /// # Errors
    /// As [`AttributionGraph::mean`].
    pub fn minus(&self, other: &Self) -> Result<Self> {
        Self::combined(&[(1.0, self), (-1.0, other)])
    }

    fn combined(parts: &[(f32, &Self)]) -> Result<Self> {
        let different = |what, given: String| GraphError::Setting { what, given, wanted: "the same in all graphs" };
        let Some((_, first)) = parts.first() else {
            let (what, given) = ("the number of graphs", "0".into());
            return Err(GraphError::Setting { what, given, wanted: "at least 1" }.into());
        };
        for (_, other) in parts {
            let compared = [
                ("the number of tokens", first.tokens.len(), other.tokens.len()),
                ("the number of layers", first.n_layers, other.n_layers),
                ("the number of targets", first.logits(), other.logits()),
                ("the number of places with features", first.units().len(), other.units().len()),
                ("the number of nodes beside features", first.columns_behind(), other.columns_behind()),
            ];
            for (what, wanted, given) in compared {
                if wanted != given {
                    return Err(different(what, format!("{wanted} and {given}")).into());
                }
            }
        }
        let key = |node: &GraphNode| (node.site, node.position, node.unit());
        let mut numbers = BTreeMap::new();
        for (_, graph) in parts {
            graph.nodes[..graph.features].iter().for_each(|node| {
                numbers.insert(key(node), 0);
            });
        }
        (0..).zip(numbers.values_mut()).for_each(|(number, place)| *place = number);
        let (features, rest) = (numbers.len(), first.columns_behind());
        let columns = features + rest;
        let rows = features + first.logits();
        let mut nodes: Vec<Option<GraphNode>> = vec![None; columns + first.logits()];
        let mut labels: Vec<Vec<String>> = vec![Vec::new(); nodes.len()];
        let mut texts: Vec<Vec<String>> = vec![Vec::new(); first.tokens.len()];
        let (mut effects, mut constants) = (vec![0f32; rows * columns], vec![0f32; rows]);
        let (mut values, mut deviations) = (constants.clone(), constants.clone());
        let whole: f32 = parts.iter().map(|(share, _)| share.abs()).sum();
        for (share, graph) in parts {
            let place = |node: usize| match node < graph.features {
                true => numbers[&key(&graph.nodes[node])],
                false => node - graph.features + features,
            };
            let places: Vec<usize> = (0..graph.nodes.len()).map(place).collect();
            for (node, own) in graph.nodes.iter().enumerate() {
                let to = places[node];
                if !labels[to].contains(&own.label) {
                    labels[to].push(own.label.clone());
                }
                let held = nodes[to].get_or_insert_with(|| GraphNode {
                    activation: own.activation.map(|_| 0.0),
                    kind: match own.kind {
                        NodeKind::Logit { token, .. } => NodeKind::Logit { token, weight: 0.0 },
                        kind => kind,
                    },
                    ..own.clone()
                });
                if let (Some(sum), Some(act)) = (&mut held.activation, own.activation) {
                    *sum += share * act;
                }
                if let (NodeKind::Logit { token, weight }, NodeKind::Logit { token: own, weight: more }) =
                    (&mut held.kind, own.kind)
                {
                    *weight += share.abs() / whole * more;
                    *token = token.filter(|token| own == Some(*token));
                }
                let (Some(row), Some(own)) = (graph.row_of(node), graph.effects_on(node)) else { continue };
                let to = if to < features { to } else { to - columns + features };
                let sums = &mut effects[to * columns..][..columns];
                own.iter().zip(&places).for_each(|(effect, place)| sums[*place] += share * effect);
                constants[to] += share * graph.constants[row];
                values[to] += share * graph.values[row];
                deviations[to] = deviations[to].max(graph.deviations[row]);
            }
            for (texts, own) in texts.iter_mut().zip(&graph.token_texts) {
                if !texts.contains(own) {
                    texts.push(own.clone());
                }
            }
        }
        let nodes: Vec<GraphNode> = nodes
            .into_iter()
            .flatten()
            .zip(labels)
            .map(|(node, labels)| GraphNode { label: joined(&labels), ..node })
            .collect();
        let most = |of: fn(&Self) -> usize| parts.iter().map(|(_, graph)| of(graph)).max().unwrap_or(0);
        let mut combined = Self::assembled(
            nodes,
            effects,
            [features, first.places, first.len],
            [constants, values, deviations],
            (first.tokens.clone(), texts.iter().map(|texts| joined(texts)).collect()),
            (most(|graph| graph.active), most(|graph| graph.left_out), first.n_layers),
            first.units().to_vec(),
        );
        combined.prompts = parts.iter().map(|(_, graph)| graph.prompts).sum();
        combined.prompt = match combined.prompts {
            1 => first.prompt.clone(),
            count => format!("{} (and {} more)", first.prompt, count - 1),
        };
        Ok(combined)
    }

    /// Number of targets.
    fn logits(&self) -> usize {
        self.nodes.len() - self.first_logit()
    }
}

/// Texts in one.
fn joined(texts: &[String]) -> String {
    match texts {
        [one] => one.clone(),
        some if some.len() <= SHOWN => some.join("/"),
        some => format!("{}/...", some[..SHOWN].join("/")),
    }
}
