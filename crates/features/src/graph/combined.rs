//! Combination of graphs of several prompts with the same template: their mean, or the difference of two.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attribution_graph::{AttributionGraph, GraphNode, NodeKind};
use crate::error::GraphError;
use hooklens_model::error::Result;

/// Maximum number of different token texts shown per position.
const SHOWN: usize = 3;

impl AttributionGraph {
    /// The mean of graphs of prompts with the same number of tokens. A feature's effects count as zero in graphs where
    /// it is not active. Effects and constant sum to the mean pre-activation. If the iterator computes graphs lazily,
    /// only the running sum and one graph are in memory.
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
    /// let mean = AttributionGraph::mean([Ok(one.clone()), Ok(other.clone())])?;
    /// let apart = one.minus(&other)?; // effects that are stronger or weaker in `one`
    /// assert!(mean.deviation() < 1e-4 && apart.deviation() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Setting`] if there are no graphs, or if they differ in the model, the dictionaries, or the number of
    /// tokens, layers, targets or sites with features; also the first error of the iterator.
    pub fn mean(graphs: impl IntoIterator<Item = Result<Self>>) -> Result<Self> {
        let (mut sum, mut count) = (Sum::default(), 0u32);
        for graph in graphs {
            sum.add(1.0, &graph?)?;
            count += 1;
        }
        sum.times(1.0 / count.max(1) as f32)
    }

    /// This graph's effects minus another's.
    ///
    /// # Errors
    /// Same as [`AttributionGraph::mean`].
    pub fn minus(&self, other: &Self) -> Result<Self> {
        let mut sum = Sum::default();
        sum.add(1.0, self)?;
        sum.add(-1.0, other)?;
        sum.times(1.0)
    }

    /// Number of targets.
    fn logits(&self) -> usize {
        self.nodes.len() - self.first_logit()
    }
}

/// Identifies a feature across graphs: its site, position and unit.
type Key = (Option<usize>, usize, Option<usize>);

fn key(node: &GraphNode) -> Key {
    (node.site, node.position, node.unit())
}

/// A weighted sum of graphs.
#[derive(Default)]
struct Sum {
    /// The sum so far; `None` before the first graph.
    graph: Option<AttributionGraph>,
    /// Distinct labels of each node in the graphs so far.
    labels: Vec<Vec<String>>,
    /// Distinct texts of each position's token in the graphs so far.
    texts: Vec<Vec<String>>,
    /// The sum of the magnitudes of the weights.
    whole: f32,
}

impl Sum {
    fn add(&mut self, share: f32, graph: &AttributionGraph) -> Result<()> {
        let mut sum = match self.graph.take() {
            Some(sum) => {
                same(&sum, graph)?;
                sum
            }
            None => {
                self.labels = vec![Vec::new(); graph.nodes.len()];
                self.texts = vec![Vec::new(); graph.tokens.len()];
                empty(graph)
            }
        };
        self.widen(&mut sum, graph);
        let places = places(&sum, graph);
        for (node, own) in graph.nodes.iter().enumerate() {
            let to = places[node];
            if !self.labels[to].contains(&own.label) {
                self.labels[to].push(own.label.clone());
            }
            let held = &mut sum.nodes[to];
            if let (Some(sum), Some(act)) = (&mut held.activation, own.activation) {
                *sum += share * act;
            }
            if let (NodeKind::Logit { token, weight }, NodeKind::Logit { token: own, weight: more }) =
                (&mut held.kind, own.kind)
            {
                *weight += share.abs() * more;
                *token = token.filter(|token| own == Some(*token));
            }
            let (Some(from), Some(to), Some(own)) = (graph.row_of(node), sum.row_of(to), graph.effects_on(node)) else {
                continue;
            };
            let columns = sum.first_logit();
            let sums = &mut sum.effects[to * columns..][..columns];
            own.iter().zip(&places).for_each(|(effect, place)| sums[*place] += share * effect);
            sum.constants[to] += share * graph.constants[from];
            sum.values[to] += share * graph.values[from];
            sum.deviations[to] = sum.deviations[to].max(graph.deviations[from]);
        }
        for (texts, own) in self.texts.iter_mut().zip(&graph.token_texts) {
            if !texts.contains(own) {
                texts.push(own.clone());
            }
        }
        self.whole += share.abs();
        sum.prompts += graph.prompts;
        sum.active = sum.active.max(graph.active);
        sum.left_out = sum.left_out.max(graph.left_out);
        self.graph = Some(sum);
        Ok(())
    }

    /// Adds nodes for features of a graph that are not yet in the sum.
    fn widen(&mut self, sum: &mut AttributionGraph, graph: &AttributionGraph) {
        let mut numbers: BTreeMap<Key, usize> =
            sum.nodes[..sum.features].iter().chain(&graph.nodes[..graph.features]).map(|node| (key(node), 0)).collect();
        if numbers.len() == sum.features {
            return;
        }
        (0..).zip(numbers.values_mut()).for_each(|(number, place)| *place = number);
        let (before, features) = (sum.features, numbers.len());
        let place = |node: usize, sum: &AttributionGraph| match node < before {
            true => numbers[&key(&sum.nodes[node])],
            false => node - before + features,
        };
        let places: Vec<usize> = (0..sum.nodes.len()).map(|node| place(node, sum)).collect();
        let columns = features + sum.columns_behind();
        let rows = features + sum.logits();
        let mut nodes: Vec<Option<GraphNode>> = vec![None; columns + sum.logits()];
        let mut labels = vec![Vec::new(); nodes.len()];
        let mut effects = vec![0f32; rows * columns];
        let mut numbered = [vec![0f32; rows], vec![0f32; rows], vec![0f32; rows]];
        for (node, to) in places.iter().copied().enumerate() {
            nodes[to] = Some(sum.nodes[node].clone());
            labels[to] = std::mem::take(&mut self.labels[node]);
            let (Some(from), Some(own)) = (sum.row_of(node), sum.effects_on(node)) else { continue };
            let row = if to < features { to } else { to - columns + features };
            own.iter().zip(&places).for_each(|(effect, place)| effects[row * columns + place] = *effect);
            let held = [sum.constants[from], sum.values[from], sum.deviations[from]];
            numbered.iter_mut().zip(held).for_each(|(all, own)| all[row] = own);
        }
        for node in &graph.nodes[..graph.features] {
            let held = &mut nodes[numbers[&key(node)]];
            held.get_or_insert_with(|| zero(node));
        }
        sum.nodes = nodes.into_iter().flatten().collect();
        (sum.effects, sum.features, self.labels) = (effects, features, labels);
        [sum.constants, sum.values, sum.deviations] = numbered;
    }

    /// Multiplies the sum by a factor.
    fn times(self, factor: f32) -> Result<AttributionGraph> {
        let Some(sum) = self.graph else {
            let (what, given) = ("the number of graphs", "0".into());
            return Err(GraphError::Setting { what, given, wanted: "at least 1" }.into());
        };
        let scaled = |values: Vec<f32>| values.into_iter().map(|x| x * factor).collect::<Vec<f32>>();
        let nodes = sum.nodes.into_iter().zip(self.labels).map(|(node, labels)| GraphNode {
            activation: node.activation.map(|act| act * factor),
            kind: match node.kind {
                NodeKind::Logit { token, weight } => NodeKind::Logit { token, weight: weight / self.whole },
                kind => kind,
            },
            label: joined(&labels),
            ..node
        });
        let mut graph = AttributionGraph::assembled(
            nodes.collect(),
            scaled(sum.effects),
            [sum.features, sum.places, sum.len],
            [scaled(sum.constants), scaled(sum.values), sum.deviations],
            (sum.tokens, self.texts.iter().map(|texts| joined(texts)).collect()),
            (sum.active, sum.left_out, sum.n_layers),
            sum.units,
        );
        (graph.prompts, graph.prompt, graph.model) = (sum.prompts, sum.prompt, sum.model);
        if graph.prompts > 1 {
            graph.prompt = format!("{} (and {} more)", graph.prompt, graph.prompts - 1);
        }
        Ok(graph)
    }
}

/// Checks that two graphs have the same nodes, apart from features, and that a feature of one is that feature of the
/// other.
fn same(first: &AttributionGraph, other: &AttributionGraph) -> Result<()> {
    let compared = [
        ("the number of tokens", first.tokens.len(), other.tokens.len()),
        ("the number of layers", first.n_layers, other.n_layers),
        ("the number of targets", first.logits(), other.logits()),
        ("the number of nodes other than features", first.columns_behind(), other.columns_behind()),
    ];
    let fails = |what, given, wanted| Err(GraphError::Setting { what, given, wanted }.into());
    if let Some((what, wanted, given)) = compared.into_iter().find(|(_, wanted, given)| wanted != given) {
        return fails(what, format!("{wanted} and {given}"), "the same number in all graphs");
    }
    if let Some(other) = &other.model {
        first.check_model(other)?;
    }
    first.check_features(other.units())
}

/// A copy of a node with zero values.
fn zero(node: &GraphNode) -> GraphNode {
    GraphNode {
        activation: node.activation.map(|_| 0.0),
        kind: match node.kind {
            NodeKind::Logit { token, .. } => NodeKind::Logit { token, weight: 0.0 },
            kind => kind,
        },
        ..node.clone()
    }
}

/// A graph with the same nodes and all values zero.
fn empty(graph: &AttributionGraph) -> AttributionGraph {
    let zeros = |of: &[f32]| vec![0.0; of.len()];
    AttributionGraph {
        nodes: graph.nodes.iter().map(zero).collect(),
        effects: zeros(&graph.effects),
        constants: zeros(&graph.constants),
        values: zeros(&graph.values),
        deviations: zeros(&graph.deviations),
        prompts: 0,
        chosen_targets: Vec::new(),
        options: None,
        tokens: graph.tokens.clone(),
        token_texts: graph.token_texts.clone(),
        units: graph.units.clone(),
        prompt: graph.prompt.clone(),
        model: graph.model.clone(),
        id: Arc::default(),
        ..*graph
    }
}

/// The index in a sum of each node of a graph.
fn places(sum: &AttributionGraph, graph: &AttributionGraph) -> Vec<usize> {
    let numbers: BTreeMap<Key, usize> = sum.nodes[..sum.features].iter().map(key).zip(0..).collect();
    let place = |node: usize| match node < graph.features {
        true => numbers[&key(&graph.nodes[node])],
        false => node - graph.features + sum.features,
    };
    (0..graph.nodes.len()).map(place).collect()
}

/// Joins distinct texts, showing at most [`SHOWN`] of them.
fn joined(texts: &[String]) -> String {
    match texts {
        [one] => one.clone(),
        some if some.len() <= SHOWN => some.join("/"),
        some => format!("{}/...", some[..SHOWN].join("/")),
    }
}
