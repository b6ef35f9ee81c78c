//! The graph itself: nodes, direct effects, and what proves them.

use super::influence::threshold;
use super::intervene::{FeatureEdit, one_prompt};
use super::options::GraphOptions;
use super::replacement::Replacement;
use super::target::GraphTarget;
use super::trace::{GraphProgress, trace};
use crate::Units;
use crate::error::GraphError;
use hooklens_model::driver::Input;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum NodeKind {
    /// A latent of a transcoder, at the layer where it is read.
    Feature {
        /// The latent.
        latent: usize,
    },
    /// A latent of an autoencoder of the residual stream.
    Latent {
        /// The latent.
        latent: usize,
    },
    /// A neuron of an MLP.
    Neuron {
        /// The neuron.
        neuron: usize,
    },
    /// What the features of a layer miss.
    Error,
    /// A token's vector.
    Token {
        /// Its id.
        id: u32,
    },
    /// A position's learned vector.
    Position,
    /// A target.
    Logit {
        /// The token, of a target that is one token's logit.
        token: Option<u32>,
        /// What it counts: its probability.
        weight: f32,
    },
}

/// A node of an attribution graph.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GraphNode {
    /// What it is.
    pub kind: NodeKind,
    /// Its layer; none of tokens and positions, and of targets the number of layers.
    pub layer: Option<usize>,
    /// Its position in the prompt.
    pub position: usize,
    /// What it is called: a token's text, a label of a latent. Often nothing.
    pub label: String,
    /// The activation of a feature.
    pub activation: Option<f32>,
    /// The share of the influence on the targets that this node and all with more have, from 0 to 1.
    pub influence: f32,
    /// Which of the replacement's dictionaries a feature is of.
    pub(super) site: Option<usize>,
}

impl GraphNode {
    /// Whether it is a latent or a neuron.
    pub fn is_feature(&self) -> bool {
        self.unit().is_some()
    }

    /// The number of a latent or neuron.
    pub fn unit(&self) -> Option<usize> {
        match self.kind {
            NodeKind::Feature { latent } | NodeKind::Latent { latent } => Some(latent),
            NodeKind::Neuron { neuron } => Some(neuron),
            _ => None,
        }
    }

    /// A change of a feature: its activation times this.
    pub fn edit(&self, factor: f32) -> Option<FeatureEdit> {
        let edit = FeatureEdit::times(self.layer?, self.position, self.unit()?, factor);
        Some(edit.of_site(self.site))
    }
}

/// A direct effect of one node on another.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphEdge {
    /// The node that acts.
    pub source: usize,
    /// The node that is acted on.
    pub target: usize,
    /// What the source adds to the target's pre-activation or logit.
    pub weight: f32,
}

/// How much of a model's computation a graph's features carry.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphScores {
    /// The influence of tokens over that of tokens and errors.
    pub replacement: f64,
    /// The share of inputs that are no errors, of all nodes by their influence.
    pub completeness: f64,
}

/// Which features made a model say what it says (Ameisen et al. 2025): the direct effects of features, errors and tokens on
/// each other and on the logits, where attention patterns and the scales of norms are taken as they were.
///
/// The sum of all effects on a node and its constant is its pre-activation: [`AttributionGraph::deviation`] says how well.
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let prompt = "When Mary and John went to the store, John gave a drink to";
/// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
/// assert!(graph.deviation() < 1e-4); // every row proves itself
/// let pruned = graph.prune(0.8, 0.98)?;
/// println!("{} nodes, {} edges, {:?}", pruned.nodes().len(), pruned.edges().len(), graph.scores());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AttributionGraph {
    pub(super) nodes: Vec<GraphNode>,
    /// `[target, source]`: features, then logits; and features, errors, tokens, positions.
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
    /// The features of each site.
    pub(super) units: Vec<Units>,
    pub(super) prompts: usize,
    pub(super) prompt: String,
    /// Its targets, of one prompt.
    pub(super) goals: Vec<(GraphTarget, f32)>,
    /// What it was made with, of one prompt.
    pub(super) options: Option<GraphOptions>,
}

impl AttributionGraph {
    /// The graph of a prompt.
    ///
    /// # Errors
    /// A replacement that does not fit the model ([`GraphError::Replacement`]), targets that are none, a prompt that the
    /// model can't run.
    pub fn new(
        model: &HookedTransformer,
        prompt: impl Into<Input>,
        replacement: &Replacement,
        options: &GraphOptions,
    ) -> Result<Self> {
        Self::with_progress(model, prompt, replacement, options, |_| {})
    }

    /// [`AttributionGraph::new`], telling how far it is.
    ///
    /// # Errors
    /// As there.
    pub fn with_progress(
        model: &HookedTransformer,
        prompt: impl Into<Input>,
        replacement: &Replacement,
        options: &GraphOptions,
        progress: impl FnMut(GraphProgress),
    ) -> Result<Self> {
        let tokens = one_prompt(model, prompt.into())?;
        trace(model, tokens.row(0), replacement, options, progress)
    }

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
            units,
            prompts: 1,
            prompt: String::new(),
            goals: Vec::new(),
            options: None,
        };
        let influence = graph.influence_of(|_, _| true);
        for (node, share) in graph.nodes.iter_mut().zip(cumulative(&influence)) {
            node.influence = share;
        }
        graph
    }

    /// Its nodes: features by layer, position and latent, errors by layer and position, tokens, positions, targets.
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// The prompt's ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The prompt's text; of several prompts that of the first, and how many more there are.
    pub fn prompt(&self) -> &str {
        &self.prompt
    }

    /// The prompt's tokens as text.
    pub fn token_texts(&self) -> &[String] {
        &self.token_texts
    }

    /// Prompts that it is the mean or the difference of.
    pub fn prompts(&self) -> usize {
        self.prompts
    }

    /// Features that were active in the prompt, of which the graph may have fewer.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Positions at the beginning whose features were left out.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The features of each site.
    pub(super) fn units(&self) -> &[Units] {
        &self.units
    }

    /// Layers of the model.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// Nodes that have inputs: features and targets.
    fn targets(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.features).chain(self.first_logit()..self.nodes.len())
    }

    pub(super) fn first_logit(&self) -> usize {
        self.features + self.columns_behind()
    }

    /// Columns behind the features'.
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

    /// The direct effects on a node of all others but targets, by their number; nothing for a node without inputs.
    pub fn effects_on(&self, node: usize) -> Option<&[f32]> {
        let columns = self.first_logit();
        self.row_of(node).map(|row| &self.effects[row * columns..][..columns])
    }

    /// What is constant in a node's pre-activation or logit: biases, and what MLPs write at positions left out.
    pub fn constant(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.constants[row])
    }

    /// A feature's pre-activation, a target's logit.
    pub fn value(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.values[row])
    }

    /// By how much effects and constant miss a node's value, as a share of the largest of them, or of what a product of vectors
    /// of such lengths usually is, where that is more: rounding is no less. Nothing for a node without inputs.
    pub fn deviation_of(&self, node: usize) -> Option<f32> {
        self.row_of(node).map(|row| self.deviations[row])
    }

    /// The largest [`AttributionGraph::deviation_of`] of all nodes: the proof of the graph.
    pub fn deviation(&self) -> f32 {
        self.deviations.iter().copied().fold(0.0, f32::max)
    }

    /// Influence of every node on the targets, of the edges that are kept.
    fn influence_of(&self, kept: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let columns = self.first_logit();
        let mut influence = vec![0f64; self.nodes.len()];
        // Targets, then features from the last layer: what acts on a feature comes before it.
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

    /// How much of the computation the features carry, as circuit-tracer defines it; learned positions count as tokens.
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

    /// The nodes that carry this share of the influence on the targets, and of the edges between them those that carry that
    /// share; tokens, positions and targets stay. Features without inputs or outputs go, errors without outputs.
    ///
    /// # Errors
    /// [`GraphError::Setting`] for shares that are none.
    pub fn prune(&self, node_share: f64, edge_share: f64) -> Result<PrunedGraph> {
        for (what, share) in [("the share of nodes", node_share), ("the share of edges", edge_share)] {
            if !(0.0..=1.0).contains(&share) {
                let given = share.to_string();
                return Err(GraphError::Setting { what, given, wanted: "from 0 to 1" }.into());
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
        // Scores first and edges after, as there may be many more of those that go.
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
        Ok(PrunedGraph { nodes, edges })
    }

    /// Shows all edges between nodes that are kept, each with its share of the influence on the targets.
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

/// What is left of a graph: nodes by their number in it, and edges between them.
#[derive(Debug, Clone, PartialEq)]
pub struct PrunedGraph {
    nodes: Vec<usize>,
    edges: Vec<GraphEdge>,
}

impl PrunedGraph {
    /// Nodes, by their number in the graph.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Edges, by targets.
    pub fn edges(&self) -> &[GraphEdge] {
        &self.edges
    }
}

/// For each the share that it and all larger ones have.
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
