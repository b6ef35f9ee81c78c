//! [`Backward`]: how attribution patching propagates a change in the metric backward.

mod grad_drop;
mod relp;

use hooklens_hooks::{Catalog, Hook, PointId};

use super::model::Patchable;
use super::sweep::Patching;
use hooklens_model::config::Layers;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderChecks, HookedTransformer};

/// How [`Patching::attribution`], [`Patching::query_attribution`], [`Patching::key_attribution`] and
/// [`Patching::edges`] propagate a change in the metric backward. The forward pass stays the same.
///
/// ```
/// use hooklens::attribution::Backward;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let patching = || model.patching(clean, corrupted).logit_diff("Mary", "John");
/// let by_gradient = patching()?.attribution("*hook_mlp_out")?.mlp_out()?;
/// let by_relp = patching()?.backward(Backward::Relp { frozen_patterns: false })?.attribution("*hook_mlp_out")?.mlp_out()?;
/// for ((at, gradient), (_, relp)) in by_gradient.effect().largest(3).into_iter().zip(by_relp.effect().largest(3)) {
///     println!("{at:?}: {gradient:+.2}, {relp:+.2}");
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backward {
    /// The gradient of the metric (Nanda 2023).
    #[default]
    Gradient,
    /// Relevance patching (RelP, Jafari et al. 2025): the rules of layer-wise relevance propagation instead of local
    /// gradients. The scales of norms and the routing of experts are constants, activation functions are replaced by
    /// the secants from the origin, and each factor of a gated MLP is credited with half of the product.
    Relp {
        /// Whether attention patterns are constants too (AH-rule). If so, queries and keys have no effect.
        frozen_patterns: bool,
    },
    /// GradDrop of AtP* (Kramár et al. 2024): computes one gradient per layer, skipping what that layer adds to the
    /// residual stream, and averages the magnitudes of the resulting estimates. Finds nodes whose effects through
    /// different layers cancel in the gradient, but not in a patch. Estimates have no sign. Not available for edges.
    GradDrop,
}

impl<M: Patchable> Patching<'_, M> {
    /// Chooses how attribution patching propagates a change in the metric backward; sweeps of real patches stay the
    /// same.
    ///
    /// # Errors
    /// [`Backward::Relp`] and [`Backward::GradDrop`] fail for models other than decoders. [`Backward::Relp`] also fails
    /// for models with layers other than plain attention and MLPs, or with clipped gates. [`Backward::GradDrop`] also
    /// fails for models with a single layer.
    pub fn backward(mut self, backward: Backward) -> Result<Self> {
        if backward != Backward::Gradient {
            self.model().check_backward(backward)?;
        }
        self.backward = backward;
        Ok(self)
    }
}

/// One backward pass.
pub(crate) struct BackwardPass {
    backward: Backward,
    /// Points at which the pass is cut.
    cut: Vec<String>,
}

impl BackwardPass {
    /// The hooks of the run that is differentiated.
    pub(crate) fn hooks(&self, catalog: &Catalog) -> Vec<Hook<'static>> {
        let mut hooks = self.backward.hooks(catalog);
        hooks.extend(grad_drop::without(&self.cut));
        hooks
    }

    /// Whether the pass is cut at this point, so that there is no gradient.
    pub(crate) fn is_cut_at(&self, point: &str) -> bool {
        self.cut.iter().any(|cut| cut == point)
    }
}

impl Backward {
    /// Fails for models for which this backward pass is not defined.
    pub(crate) fn check(self, model: &HookedTransformer) -> Result<()> {
        match self {
            Backward::Gradient => {}
            Backward::Relp { .. } => {
                const WHAT: &str = "RelP";
                model.check_plain_layers(WHAT)?;
                if model.config().experts().is_some_and(|experts| experts.clipped.is_some()) {
                    let with = "experts with clipped gates (`experts`)";
                    return Err(InputError::NotDefined { what: WHAT, with }.into());
                }
            }
            Backward::GradDrop if model.config().n_layers() < 2 => {
                return Err(InputError::NotDefined { what: "GradDrop", with: "a single layer" }.into());
            }
            Backward::GradDrop => {}
        }
        Ok(())
    }

    /// Fails if this backward pass is not available for edges.
    pub(crate) fn check_edges(self) -> Result<()> {
        match self {
            Backward::GradDrop => Err(InputError::Conflict {
                option: "Backward::GradDrop",
                with: "edges",
                reason: "it estimates the effects of nodes; use `attribution` instead",
            }
            .into()),
            Backward::Gradient | Backward::Relp { .. } => Ok(()),
        }
    }

    /// Fails for points at which there is no gradient.
    pub(crate) fn check_points(self, catalog: &Catalog, points: &[PointId]) -> Result<()> {
        if let Backward::Relp { .. } = self {
            let before = relp::before_activations(catalog);
            if points.iter().any(|point| before.iter().any(|name| **name == *catalog.info(*point).name)) {
                return Err(InputError::Conflict {
                    option: "Backward::Relp",
                    with: "a point before an activation function",
                    reason: "its rules go from the neurons' outputs directly to the MLP's input; choose `hook_post` \
                             or `hook_mlp_in` instead",
                }
                .into());
            }
        }
        Ok(())
    }

    /// The backward passes of one example.
    pub(crate) fn passes(self, catalog: &Catalog) -> Vec<BackwardPass> {
        let pass = |cut| BackwardPass { backward: self, cut };
        match self {
            Backward::Gradient | Backward::Relp { .. } => vec![pass(Vec::new())],
            Backward::GradDrop => {
                (0..catalog.n_layers()).map(|layer| pass(grad_drop::added_by(catalog, layer))).collect()
            }
        }
    }

    /// The estimate for each site, combined from the estimates of all passes.
    pub(crate) fn combined(self, by_pass: &[Vec<f64>]) -> Vec<f64> {
        let of_site = |site: usize| {
            let effects: Vec<f64> = by_pass.iter().map(|effects| effects[site]).collect();
            match self {
                Backward::Gradient | Backward::Relp { .. } => effects.iter().sum(),
                Backward::GradDrop => grad_drop::mean_magnitude(&effects),
            }
        };
        (0..by_pass.first().map_or(0, Vec::len)).map(of_site).collect()
    }

    /// Hooks that change how gradients are propagated without cutting the pass.
    pub(crate) fn hooks(self, catalog: &Catalog) -> Vec<Hook<'static>> {
        match self {
            Backward::Gradient | Backward::GradDrop => Vec::new(),
            Backward::Relp { frozen_patterns } => relp::rules(catalog, frozen_patterns),
        }
    }

    /// Whether the scales of norms are constants.
    pub(crate) fn freezes_norms(self) -> bool {
        matches!(self, Backward::Relp { .. })
    }
}
