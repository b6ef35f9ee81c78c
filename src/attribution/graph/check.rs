//! The test of a graph: what a held intervention changes is what its edges say.

use super::attribution_graph::{AttributionGraph, NodeKind};
use super::capture::capture;
use super::host;
use super::intervene::{FeatureEdit, Hold, Intervention};
use super::replacement::Replacement;
use crate::error::Result;
use crate::model::HookedTransformer;

/// How well interventions agree with a graph's edges.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphCheck {
    /// Features that were changed, one at a time.
    pub edits: usize,
    /// Edges that were compared.
    pub edges: usize,
    /// The largest difference between an edge and the change that was measured, as a share of the largest edge of its source.
    pub deviation: f32,
    /// Where that was: source, target and the change that was measured.
    pub worst: Option<(usize, usize, f32)>,
}

impl AttributionGraph {
    /// Doubles so many features, those with the most influence, one at a time, with patterns, norms and MLPs held, and
    /// compares the change of every other feature's pre-activation and of every target with the edge.
    ///
    /// # Errors
    /// As [`AttributionGraph::new`].
    pub fn check(&self, model: &HookedTransformer, replacement: &Replacement, edits: usize) -> Result<GraphCheck> {
        let captured = capture(model, self.tokens(), replacement, self.left_out())?;
        let intervention = Intervention::new(model, self.tokens(), &captured)?;
        let none = intervention.run(&[], Hold::Everything)?;
        let before: Vec<Vec<f32>> = none.pre_activations.into_iter().map(host).collect();
        let logits_before = host(none.logits);
        let mut features: Vec<usize> =
            (0..self.nodes().len()).filter(|node| self.nodes()[*node].is_feature()).collect();
        features.sort_by(|a, b| self.nodes()[*a].influence.total_cmp(&self.nodes()[*b].influence));
        features.truncate(edits);
        let mut check = GraphCheck { edits: features.len(), edges: 0, deviation: 0.0, worst: None };
        for source in features {
            let edit: Vec<FeatureEdit> = self.nodes()[source].edit(2.0).into_iter().collect();
            let made = intervention.run(&edit, Hold::Everything)?;
            let after: Vec<Vec<f32>> = made.pre_activations.into_iter().map(host).collect();
            let logits = host(made.logits);
            let (mut worst, mut largest) = ((0f32, 0, 0f32), 0f32);
            for (target, node) in self.nodes().iter().enumerate() {
                let Some(effects) = self.effects_on(target) else { continue };
                let measured = match node.kind {
                    NodeKind::Logit { token: Some(id), .. } if model.config().output_logits_soft_cap.is_none() => {
                        let vocabulary = model.config().d_vocab_out;
                        let last = (self.tokens().len() - 1) * vocabulary;
                        let mean =
                            |of: &[f32]| of[last..].iter().map(|x| f64::from(*x)).sum::<f64>() / vocabulary as f64;
                        let at = |of: &[f32]| f64::from(of[last + id as usize]) - mean(of);
                        (at(&logits) - at(&logits_before)) as f32
                    }
                    _ if node.is_feature() => {
                        let Some(site) = node.site else { continue };
                        let latents = before[site].len() / self.tokens().len();
                        let at = node.position * latents + node.unit().unwrap_or(0);
                        after[site][at] - before[site][at]
                    }
                    _ => continue,
                };
                let missed = (measured - effects[source]).abs();
                if missed > worst.0 {
                    worst = (missed, target, measured);
                }
                largest = largest.max(effects[source].abs());
                check.edges += 1;
            }
            if worst.0 > check.deviation * largest {
                (check.deviation, check.worst) =
                    (worst.0 / largest.max(f32::MIN_POSITIVE), Some((source, worst.1, worst.2)));
            }
        }
        Ok(check)
    }
}
