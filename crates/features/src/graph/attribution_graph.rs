//! [`AttributionGraph`]: nodes, their direct effects on each other, and a check that the effects sum to the nodes'
//! values.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::influence::threshold;
use super::intervene::FeatureEdit;
use super::options::GraphOptions;
use super::site::Sort;
use super::target::GraphTarget;
use crate::Units;
use crate::error::GraphError;
use hooklens_model::error::Result;

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum NodeKind {
    /// A latent of a transcoder, in the layer that the transcoder reads.
    Feature {
        /// Index of the latent.
        latent: usize,
    },
    /// A latent of a sparse autoencoder on the residual stream.
    Latent {
        /// Index of the latent.
        latent: usize,
    },
    /// A neuron of an MLP.
    Neuron {
        /// Index of the neuron.
        neuron: usize,
    },
    /// The reconstruction error of a layer's features.
    Error,
    /// A token's embedding.
    Token {
        /// The token id.
        id: u32,
    },
    /// A learned position embedding.
    Position,
    /// A target, such as a logit.
    Logit {
        /// The token, if the target is the logit of one token.
        token: Option<u32>,
        /// The target's weight, such as the token's probability.
        weight: f32,
    },
}

/// A node of an attribution graph.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GraphNode {
    /// The node's kind.
    pub kind: NodeKind,
    /// Layer of the node. `None` for tokens and positions; the number of layers for targets.
    pub layer: Option<usize>,
    /// Position in the prompt.
    pub position: usize,
    /// A label, such as a token's text or a latent's label. Often empty.
    pub label: String,
    /// The activation, for features.
    pub activation: Option<f32>,
    /// Cumulative influence on the targets: the fraction of the total influence that this node and all nodes with more
    /// influence have together.
    pub influence: f32,
    /// For features, the index of the dictionary in the replacement.
    pub(super) site: Option<usize>,
}

impl GraphNode {
    /// Whether the node is a latent or a neuron.
    pub fn is_feature(&self) -> bool {
        self.unit().is_some()
    }

    /// The index of the latent or neuron; `None` for nodes other than features.
    pub fn unit(&self) -> Option<usize> {
        match self.kind {
            NodeKind::Feature { latent } | NodeKind::Latent { latent } => Some(latent),
            NodeKind::Neuron { neuron } => Some(neuron),
            _ => None,
        }
    }

    /// An edit that multiplies the feature's activation by `factor`; `None` for nodes other than features.
    pub fn edit(&self, factor: f32) -> Option<FeatureEdit> {
        let sort = match self.kind {
            NodeKind::Feature { .. } => Sort::Transcoder,
            NodeKind::Latent { .. } => Sort::Latent,
            NodeKind::Neuron { .. } => Sort::Neuron,
            _ => return None,
        };
        let edit = FeatureEdit::times(self.layer?, self.position, self.unit()?, factor);
        Some(edit.of_site(self.site?, sort))
    }
}

/// The direct effect of one node on another.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphEdge {
    /// Index of the node that has the effect.
    pub source: usize,
    /// Index of the affected node.
    pub target: usize,
    /// Contribution of the source to the target's pre-activation or logit.
    pub weight: f32,
}

/// How much of the model's computation the features of a graph capture.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphScores {
    /// Influence of tokens divided by the combined influence of tokens and errors.
    pub replacement: f64,
    /// Fraction of a node's input that does not come from errors, averaged over nodes weighted by influence.
    pub completeness: f64,
}

/// An attribution graph (Ameisen et al. 2025): the direct effects of features, errors and tokens on each other and on
/// the logits, with attention patterns and norm scales frozen.
///
/// A node's pre-activation equals the sum of all effects on it plus its constant, up to
/// [`AttributionGraph::deviation`].
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
/// assert!(graph.deviation() < 1e-4); // effects and constants add up to every node's value
/// let pruned = graph.prune(0.8, 0.98)?;
/// println!("{} nodes, {} edges, {:?}", pruned.nodes.len(), pruned.edges.len(), graph.scores());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AttributionGraph {
    pub(super) nodes: Vec<GraphNode>,
    /// `[target, source]`. Targets are features, then logits; sources are features, errors, tokens, then positions.
    pub(super) effects: Vec<f32>,
    pub(super) features: usize,
    pub(super) places: usize,
    pub(super) len: usize,
    pub(super) constants: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) deviations: Vec<f32>,
    pub(super) tokens: Vec<u32>,
    pub(super) token_texts: Vec<String>,
    pub(super) active: usize,
    pub(super) left_out: usize,
    pub(super) n_layers: usize,
    /// Shared by clones and by what is pruned from the graph.
    pub(super) id: Arc<()>,
    /// The weights of the model; `None` only in tests without a model.
    pub(super) model: Option<Arc<ModelIdentity>>,
    /// The features of each site, as units of a dashboard.
    pub(super) units: Vec<Units>,
    pub(super) prompts: usize,
    pub(super) prompt: String,
    /// Targets of the graph; empty if it combines several prompts.
    pub(super) chosen_targets: Vec<(GraphTarget, f32)>,
    /// Options that the graph was computed with; `None` if it combines several prompts.
    pub(super) options: Option<GraphOptions>,
}

impl AttributionGraph {
    pub(super) fn assembled(
        nodes: Vec<GraphNode>,
        effects: Vec<f32>,
        [features, places, len]: [usize; 3],
        [constants, values, deviations]: [Vec<f32>; 3],
        (tokens, token_texts): (Vec<u32>, Vec<String>),
        (active, left_out, n_layers): (usize, usize, usize),
        units: Vec<Units>,
    ) -> Self {
        let mut graph = Self {
            nodes,
            effects,
            features,
            places,
            len,
            constants,
            values,
            deviations,
            tokens,
            token_texts,
            active,
            left_out,
            n_layers,
            id: Arc::default(),
            model: None,
            units,
            prompts: 1,
            prompt: String::new(),
            chosen_targets: Vec::new(),
            options: None,
        };
        let influence = graph.influence_of(|_, _| true);
        for (node, share) in graph.nodes.iter_mut().zip(cumulative(&influence)) {
            node.influence = share;
        }
        graph
    }

    /// The nodes: features by layer, position and latent; errors by layer and position; tokens; positions; targets.
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// The prompt's token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of features active in the prompt. The graph may contain fewer features.
    pub fn active(&self) -> usize {
        self.active
    }

    /// The features of each site, as units of a dashboard.
    pub(super) fn units(&self) -> &[Units] {
        &self.units
    }

    /// Indices of the nodes that have inputs: features and targets.
    fn targets(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.features).chain(self.first_logit()..self.nodes.len())
    }

    /// Index of the first target node.
    pub(super) fn first_logit(&self) -> usize {
        self.features + self.columns_behind()
    }

    /// Number of columns after the feature columns.
    pub(super) fn columns_behind(&self) -> usize {
        self.effects.len() / self.rows().max(1) - self.features
    }

    fn rows(&self) -> usize {
        self.values.len()
    }

    pub(super) fn row_of(&self, node: usize) -> Option<usize> {
        match node {
            node if node < self.features => Some(node),
            node if node >= self.first_logit() && node < self.nodes.len() => {
                Some(node - self.first_logit() + self.features)
            }
            _ => None,
        }
    }

    /// The direct effects on a node, indexed by source node (any node except targets); `None` for a node without
    /// inputs.
    pub fn effects_on(&self, node: usize) -> Option<&[f32]> {
        let columns = self.first_logit();
        self.row_of(node).map(|row| &self.effects[row * columns..][..columns])
    }

    /// The largest difference between a node's value and the sum of its constant and the effects on it, which verifies
    /// the graph. Each difference is divided by the scale of its rounding errors: the largest summed term, or the
    /// typical magnitude of a dot product of the node's input with the vector that reads it, whichever is larger.
    pub fn deviation(&self) -> f32 {
        self.deviations.iter().copied().fold(0.0, f32::max)
    }

    /// Influence of every node on the targets, over the edges that `kept` accepts.
    fn influence_of(&self, kept: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let columns = self.first_logit();
        let mut influence = vec![0f64; self.nodes.len()];
        // Visit targets first, then features from the last layer down, because a feature's inputs always precede it.
        let order = (columns..self.nodes.len()).chain((0..self.features).rev());
        for node in order {
            let own = match self.nodes[node].kind {
                NodeKind::Logit { weight, .. } => f64::from(weight),
                _ => influence[node],
            };
            let Some(row) = self.effects_on(node).filter(|_| own != 0.0) else { continue };
            let size: f64 =
                row.iter().enumerate().filter(|(source, _)| kept(node, *source)).map(|(_, x)| f64::from(x.abs())).sum();
            let factor = own / size.max(1e-10);
            for (source, x) in row.iter().enumerate().filter(|(source, x)| **x != 0.0 && kept(node, *source)) {
                influence[source] += factor * f64::from(x.abs());
            }
        }
        influence
    }

    /// How much of the computation the features capture, as circuit-tracer defines it. Learned position embeddings
    /// count as tokens.
    pub fn scores(&self) -> GraphScores {
        let influence = self.influence_of(|_, _| true);
        let errors = self.features..self.features + self.places * self.len;
        let inputs = errors.end..self.first_logit();
        let sum = |range: std::ops::Range<usize>| influence[range].iter().sum::<f64>();
        let (from_errors, from_inputs) = (sum(errors.clone()), sum(inputs));
        let (mut explained, mut all) = (0.0, 0.0);
        for (node, own) in influence.iter().enumerate() {
            let weight = match self.nodes[node].kind {
                NodeKind::Logit { weight, .. } => f64::from(weight),
                _ => *own,
            };
            let missed = self.effects_on(node).map_or(0.0, |row| {
                let size: f64 = row.iter().map(|x| f64::from(x.abs())).sum();
                let missed: f64 = row[errors.clone()].iter().map(|x| f64::from(x.abs())).sum();
                missed / size.max(1e-10)
            });
            explained += (1.0 - missed) * weight;
            all += weight;
        }
        GraphScores {
            replacement: from_inputs / (from_inputs + from_errors).max(f64::MIN_POSITIVE),
            completeness: explained / all.max(f64::MIN_POSITIVE),
        }
    }

    /// Prunes the graph: keeps the nodes that together account for `node_share` of the influence on the targets, and
    /// the edges between them that together account for `edge_share`. Tokens, positions and targets are always kept.
    /// Features without inputs or outputs and errors without outputs are removed.
    ///
    /// # Errors
    /// [`GraphError::Setting`] if `node_share` or `edge_share` is not between 0 and 1.
    pub fn prune(&self, node_share: f64, edge_share: f64) -> Result<PrunedGraph> {
        for (what, share) in [("the share of nodes", node_share), ("the share of edges", edge_share)] {
            if !(0.0..=1.0).contains(&share) {
                let given = share.to_string();
                return Err(GraphError::Setting { what, given, wanted: "a value from 0 to 1" }.into());
            }
        }
        let influence = self.influence_of(|_, _| true);
        let mut scores: Vec<f32> = influence.iter().map(|x| *x as f32).collect();
        let least = threshold(&mut scores, node_share);
        let inputs = self.features + self.places * self.len;
        let mut kept: Vec<bool> =
            influence.iter().enumerate().map(|(node, x)| node >= inputs || *x as f32 >= least).collect();

        let between = |target: usize, source: usize| kept[target] && kept[source];
        let pruned = self.influence_of(between);
        // Collect only scores in a first pass, since most edges may be dropped.
        let mut scores: Vec<f32> = Vec::new();
        self.score_edges(&kept, &pruned, |_, score| scores.push(score));
        let least = threshold(&mut scores, edge_share);
        drop(scores);
        let mut edges: Vec<GraphEdge> = Vec::new();
        self.score_edges(&kept, &pruned, |edge, score| {
            if score >= least {
                edges.push(edge);
            }
        });
        loop {
            let (mut outputs, mut incoming) = (vec![false; self.nodes.len()], vec![false; self.nodes.len()]);
            for edge in &edges {
                (outputs[edge.source], incoming[edge.target]) = (true, true);
            }
            let mut changed = false;
            for node in (0..inputs).filter(|node| kept[*node]).collect::<Vec<_>>() {
                if !outputs[node] || (node < self.features && !incoming[node]) {
                    (kept[node], changed) = (false, true);
                }
            }
            if !changed {
                break;
            }
            edges.retain(|edge| kept[edge.source] && kept[edge.target]);
        }
        let nodes = (0..self.nodes.len()).filter(|node| kept[*node]).collect();
        Ok(PrunedGraph { nodes, edges, graph: self.id.clone() })
    }

    /// Calls `show` on each edge between kept nodes, with the influence that the edge carries to the
    /// graph's targets.
    fn score_edges(&self, kept: &[bool], influence: &[f64], mut show: impl FnMut(GraphEdge, f32)) {
        for target in self.targets().filter(|target| kept[*target]) {
            let own = match self.nodes[target].kind {
                NodeKind::Logit { weight, .. } => f64::from(weight),
                _ => influence[target],
            };
            let Some(row) = self.effects_on(target) else { continue };
            let there = || row.iter().copied().enumerate().filter(|(source, _)| kept[*source]);
            let size: f64 = there().map(|(_, x)| f64::from(x.abs())).sum();
            for (source, weight) in there().filter(|(_, x)| *x != 0.0) {
                let score = (f64::from(weight.abs()) / size.max(1e-10) * own) as f32;
                show(GraphEdge { source, target, weight }, score);
            }
        }
    }
}

/// A pruned graph: indices of the remaining nodes, and the edges between them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PrunedGraph {
    /// Indices of the nodes in the original graph.
    pub nodes: Vec<usize>,
    /// The edges, grouped by target.
    pub edges: Vec<GraphEdge>,
    /// The id of the original graph.
    pub(super) graph: Arc<()>,
}

/// For each score, the fraction of the total that this score and all larger ones add up to.
fn cumulative(scores: &[f64]) -> Vec<f32> {
    let total: f64 = scores.iter().sum();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let (mut sum, mut shares) = (0.0, vec![0.0; scores.len()]);
    for node in order {
        sum += scores[node];
        shares[node] = (sum / total.max(f64::MIN_POSITIVE)) as f32;
    }
    shares
}

/// Details of a graph for reports and files, besides its nodes and effects.
pub trait GraphDetails {
    /// The prompt's text. For a combined graph, the text of the first prompt and how many more there are.
    fn prompt(&self) -> &str;

    /// The prompt's tokens as text.
    fn token_texts(&self) -> &[String];

    /// Number of prompts combined into the graph, by mean or difference.
    fn prompts(&self) -> usize;

    /// Number of positions at the start of the prompt whose features are left out.
    fn left_out(&self) -> usize;

    /// The constant part of a node's pre-activation or logit: biases, and MLP outputs at positions left out.
    fn constant(&self, node: usize) -> Option<f32>;

    /// The pre-activation of a feature or the logit of a target.
    fn value(&self, node: usize) -> Option<f32>;

    /// The relative difference for one node, as defined for [`AttributionGraph::deviation`], which returns the largest
    /// one; `None` for a node without inputs.
    fn deviation_of(&self, node: usize) -> Option<f32>;

    /// Each node's own influence on the targets, direct and through other nodes, as a fraction of the sum over all
    /// nodes; zero for targets.
    fn own_influence(&self) -> Vec<f32>;
}

impl GraphDetails for AttributionGraph {
    fn prompt(&self) -> &str {
        &self.prompt
    }

    fn token_texts(&self) -> &[String] {
        &self.token_texts
    }

    fn prompts(&self) -> usize {
        self.prompts
    }

    fn left_out(&self) -> usize {
        self.left_out
    }

    fn constant(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.constants[row])
    }

    fn value(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.values[row])
    }

    fn deviation_of(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.deviations[row])
    }

    fn own_influence(&self) -> Vec<f32> {
        let nodes = self.nodes();
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by(|a, b| nodes[*a].influence.total_cmp(&nodes[*b].influence));
        let (mut before, mut own) = (0.0, vec![0.0; nodes.len()]);
        // A node's cumulative influence is its own influence plus the cumulative influence of the node before it.
        for node in order.into_iter().filter(|node| !matches!(nodes[*node].kind, NodeKind::Logit { .. })) {
            own[node] = nodes[node].influence - before;
            before = nodes[node].influence;
        }
        own
    }
}
