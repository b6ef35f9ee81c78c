//! [`Backward`]: how attribution patching propagates a change in the metric backward.

mod relp;

use hooklens_hooks::{Catalog, Hook, PointId};

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
    /// the secants from the origin, and each factor of a gated MLP gets half of the product.
    Relp {
        /// Whether attention patterns are constants too (AH-rule). If so, queries and keys have no effect.
        frozen_patterns: bool,
    },
}

impl Patching<'_> {
    /// Chooses how attribution patching propagates a change in the metric backward; sweeps of real patches stay the
    /// same.
    ///
    /// # Errors
    /// [`Backward::Relp`] fails for models with layers other than plain attention and MLPs, and with clipped gates.
    pub fn backward(mut self, backward: Backward) -> Result<Self> {
        backward.check(self.model())?;
        self.backward = backward;
        Ok(self)
    }
}

impl Backward {
    /// Fails for models for which this is not defined.
    pub(crate) fn check(self, model: &HookedTransformer) -> Result<()> {
        if let Backward::Relp { .. } = self {
            const WHAT: &str = "RelP";
            model.check_plain_layers(WHAT)?;
            if model.config().experts().is_some_and(|experts| experts.clipped.is_some()) {
                return Err(
                    InputError::NotDefined { what: WHAT, with: "experts with clipped gates (`experts`)" }.into()
                );
            }
        }
        Ok(())
    }

    /// The hooks of a run whose gradients are propagated like this.
    pub(crate) fn hooks(self, catalog: &Catalog) -> Vec<Hook<'static>> {
        match self {
            Backward::Gradient => Vec::new(),
            Backward::Relp { frozen_patterns } => relp::rules(catalog, frozen_patterns),
        }
    }

    /// Whether the scales of norms are constants.
    pub(crate) fn freezes_norms(self) -> bool {
        matches!(self, Backward::Relp { .. })
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
}
