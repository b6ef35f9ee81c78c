//! Validation of a graph: compares its edges with the effects of interventions while everything else is held fixed.

use std::fmt;

use burn::tensor::{Tensor, TensorData};
use hooklens_io::numerals::grouped;
use serde::Serialize;

use super::attribution_graph::{AttributionGraph, GraphDetails, NodeKind};
use super::capture::Captured;
use super::host;
use super::intervene::{Hold, Intervened, Intervention};
use super::replacement::Replacement;
use super::target::{GraphTarget, What};
use crate::error::GraphError;
use hooklens_model::config::Settings;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, ModelParts};

/// Largest change of a feature, as a multiple of its activation.
const MOST: f32 = 1e4;

/// How well interventions agree with a graph's edges.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GraphCheck {
    /// Number of features that were changed, one at a time.
    edits: usize,
    /// Number of tokens whose embeddings were changed, if there were too few features.
    tokens: usize,
    /// Number of edges compared, each ending at a feature's pre-activation or a target.
    edges: usize,
    /// Largest difference between an edge's weight and the measured change, relative to the largest edge weight from
    /// the same source.
    pub deviation: f32,
}

/// Formats one line: `5 features changed, 1,200 edges agree within 3.1e-6`.
impl fmt::Display for GraphCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = if self.tokens > 0 { format!(" and {} tokens", self.tokens) } else { String::new() };
        let (edges, deviation) = (grouped(self.edges), self.deviation);
        write!(f, "{} features{tokens} changed, {edges} edges agree within {deviation:.1e}", self.edits)
    }
}

impl AttributionGraph {
    /// Changes the `edits` most influential features, one at a time, with patterns, norms and MLPs frozen, and compares
    /// the change of every other feature's pre-activation and of every target with the corresponding edge. If the graph
    /// has fewer features, changes tokens as well.
    ///
    /// # Errors
    /// Same as [`AttributionGraph::new`]; [`GraphError::Setting`] for a graph of several prompts.
    pub fn check(&self, model: &HookedTransformer, replacement: &Replacement, edits: usize) -> Result<GraphCheck> {
        if self.prompts() != 1 {
            let given = format!("a graph of {} prompts", self.prompts());
            return Err(
                GraphError::Setting { what: "the graph to check", given, wanted: "a graph of one prompt" }.into()
            );
        }
        let captured = self.captured_again(model, replacement, 0)?;
        let intervention = Intervention::new(model, self.tokens(), &captured)?;
        let before = Measured::new(intervention.run(&[], Hold::Everything)?, self, model, &captured)?;
        let most_influential = |which: fn(&NodeKind) -> bool, count: usize| {
            let mut nodes: Vec<usize> =
                (0..self.first_logit()).filter(|node| which(&self.nodes()[*node].kind)).collect();
            nodes.sort_by(|a, b| self.nodes()[*a].influence.total_cmp(&self.nodes()[*b].influence));
            nodes.truncate(count);
            nodes
        };
        let features = most_influential(
            |kind| matches!(kind, NodeKind::Feature { .. } | NodeKind::Latent { .. } | NodeKind::Neuron { .. }),
            edits,
        );
        let tokens = most_influential(|kind| matches!(kind, NodeKind::Token { .. }), edits - features.len());
        let mut check = GraphCheck { edits: features.len(), tokens: tokens.len(), edges: 0, deviation: 0.0 };
        let value = (0..self.nodes().len()).filter_map(|node| self.value(node)).fold(0f32, |most, x| most.max(x.abs()));
        for source in features.into_iter().chain(tokens) {
            let effects: Vec<(usize, f32)> =
                (0..self.nodes().len()).filter_map(|target| Some((target, self.effects_on(target)?[source]))).collect();
            let largest = effects.iter().fold(0f32, |most, (_, x)| most.max(x.abs()));
            // With everything frozen, the model is linear, so the change can be large enough that rounding does not
            // hide the effect.
            let times = (value / largest.max(f32::MIN_POSITIVE)).clamp(1.0, MOST);
            let made = match self.nodes()[source].edit(1.0 + times) {
                Some(edit) => intervention.run(&[edit], Hold::Everything)?,
                None => intervention.run_with_token(self.nodes()[source].position, 1.0 + times)?,
            };
            let after = Measured::new(made, self, model, &captured)?;
            let mut worst = 0f32;
            for (target, effect) in effects {
                let Some((to, from)) = after.of(self, target).zip(before.of(self, target)) else { continue };
                let measured = ((to - from) / f64::from(times)) as f32;
                let missed = (measured - effect).abs();
                if missed > worst || missed.is_nan() {
                    worst = missed;
                }
                check.edges += 1;
            }
            let deviation = worst / largest.max(f32::MIN_POSITIVE);
            if deviation > check.deviation || deviation.is_nan() {
                check.deviation = deviation;
            }
        }
        Ok(check)
    }
}

/// Measured values of all nodes for which a graph has rows.
struct Measured {
    /// Pre-activations per site, `[pos, feature]`.
    pre: Vec<Vec<f32>>,
    targets: Vec<f64>,
}

impl Measured {
    fn new(made: Intervened, graph: &AttributionGraph, model: &HookedTransformer, captured: &Captured) -> Result<Self> {
        let last = captured.active.len - 1;
        let mut read = made.stream;
        captured.last.forward(&mut read, last);
        let logits = match model.config().output_logits_soft_cap() {
            None => host(made.logits.narrow(1, last, 1)),
            // Targets are logits before the soft cap.
            Some(_) => {
                let data = TensorData::new(read.clone(), [1, 1, read.len()]);
                host(model.parts().unembed.forward(Tensor::<3>::from_data(data, &model.device())))
            }
        };
        let target = |(target, _): &(GraphTarget, f32)| target.of(&logits, &read);
        let targets = graph.chosen_targets.iter().map(target).collect();
        Ok(Self { pre: made.pre_activations.into_iter().map(host).collect(), targets })
    }

    fn of(&self, graph: &AttributionGraph, node: usize) -> Option<f64> {
        if node >= graph.first_logit() {
            return self.targets.get(node - graph.first_logit()).copied();
        }
        let own = &graph.nodes()[node];
        let pre = self.pre.get(own.site?)?;
        let latents = pre.len() / graph.tokens().len();
        pre.get(own.position * latents + own.unit()?).map(|x| f64::from(*x))
    }
}

impl GraphTarget {
    /// The target's value, given the logits before any soft cap and the input of the unembedding.
    fn of(&self, logits: &[f32], read: &[f32]) -> f64 {
        match &self.what {
            What::Tokens(tokens) => {
                let mean = logits.iter().map(|x| f64::from(*x)).sum::<f64>() / logits.len().max(1) as f64;
                tokens.iter().map(|(id, factor)| f64::from(*factor) * (f64::from(logits[*id as usize]) - mean)).sum()
            }
            What::Direction(direction) => read.iter().zip(direction).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum(),
        }
    }
}
