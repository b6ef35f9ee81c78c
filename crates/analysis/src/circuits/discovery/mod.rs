//! Methods that score edges: gradients, exact patching, learned masks; and ACDC.

mod acdc;
mod exact;
mod learned_masks;
mod mask_checkpoint;
mod mask_gradients;

use crate::attribution::{EdgeGraph, EdgeScores, Gradient};
use crate::error::CircuitError;
use crate::patching::{Backward, Patching};
use hooklens_model::error::Result;

pub use learned_masks::LearnedMasks;

/// A method that scores every edge of a model. The scores estimate how the metric changes if the edge is ablated,
/// except that the scores of [`Discovery::LearnedMasks`] say how much the circuit needs the edge.
///
/// ```
/// use hooklens::attribution::EdgeGraph;
/// use hooklens::circuits::Discovery;
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let graph = EdgeGraph::of(&model)?;
/// for method in [Discovery::Eap, Discovery::EapIg(5), Discovery::Relp, Discovery::MaskGradients(5)] {
///     let scores = patching.discover(&method)?;
///     println!("{method:?}, {} passes: {:?}", method.passes(&graph, 1), scores.largest(1));
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Discovery {
    /// Edge attribution patching (Syed et al. 2023): gradients in the unpatched run. See [`Gradient::AtBase`].
    Eap,
    /// Edge attribution patching with gradients averaged over this number of interpolated embeddings (Hanna et al. 2024).
    /// Needs paired prompts. See [`Gradient::Integrated`].
    EapIg(usize),
    /// Edge attribution patching with the propagation rules of RelP (Jafari et al. 2025) instead of local gradients. See
    /// [`Backward::Relp`].
    Relp,
    /// Gradients with respect to how much of each edge is ablated, averaged over this number of steps. At each
    /// step, all edges are ablated by the same fraction. With enough steps, the scores sum to the change in the metric
    /// when all edges are ablated. Works for every kind of ablation.
    MaskGradients(usize),
    /// Ablates each edge alone: one forward pass per edge and example.
    Exact,
    /// Trains a mask over the edges that preserves the metric while keeping few edges (Bhaskar et al. 2024, edge
    /// pruning).
    LearnedMasks(LearnedMasks),
}

impl Discovery {
    /// Estimated number of passes for this number of examples, to compare the costs of methods before a run. A forward
    /// pass counts as 1 and a backward pass as 2.
    pub fn passes(&self, graph: &EdgeGraph, examples: usize) -> usize {
        let steps = |first: usize, steps: usize| steps.saturating_mul(3).saturating_add(first);
        let each = match self {
            Discovery::Eap | Discovery::Relp => 5,
            Discovery::EapIg(count) => steps(2, *count),
            Discovery::MaskGradients(count) => steps(1, *count),
            Discovery::Exact => 2 + graph.len(),
            Discovery::LearnedMasks(settings) => steps(3, settings.step_count()),
        };
        each.saturating_mul(examples)
    }
}

impl Patching<'_> {
    /// Scores every edge.
    ///
    /// # Errors
    /// Fails for 0 steps; [`Discovery::Eap`], [`Discovery::EapIg`] and [`Discovery::Relp`] also fail for zero and mean
    /// ablations, which have no source run. Otherwise, same as [`Patching::run_circuits`].
    pub fn discover(&self, method: &Discovery) -> Result<EdgeScores> {
        match method {
            Discovery::Eap => self.edges(Gradient::AtBase),
            Discovery::EapIg(steps) => self.edges(Gradient::Integrated(*steps)),
            Discovery::Relp => {
                let backward = Backward::Relp { frozen_patterns: false };
                backward.check(self.model())?;
                self.edges_by(Gradient::AtBase, backward)
            }
            Discovery::MaskGradients(steps) => self.mask_gradients(steps_of(*steps)?),
            Discovery::Exact => self.exact_edges(),
            Discovery::LearnedMasks(settings) => {
                steps_of(settings.step_count())?;
                self.learned_masks(settings)
            }
        }
    }
}

fn steps_of(steps: usize) -> Result<usize, CircuitError> {
    match steps {
        0 => Err(CircuitError::Setting { name: "the number of steps", given: "0".into(), expected: "1 or more" }),
        steps => Ok(steps),
    }
}
