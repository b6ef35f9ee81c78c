//! Prompts of a sweep whose metric is not chosen yet.

use super::model::Patchable;
use super::{Ablation, Metric, Patching};
use crate::activations::TokenChoice;
use hooklens_model::error::Result;

/// Prompts to patch, without a metric yet; choosing a metric returns a [`Patching`]. See
/// [`PatchModel::patching`](super::PatchModel::patching).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let heads = model.patching(clean, corrupted).logit_diff("Mary", "John")?.attn_head_out_all_pos()?;
/// let metric = Metric::log_prob(&model, "Mary")?;
/// let nats = model.patching(clean, corrupted).metric(metric)?.attn_head_out_all_pos()?;
/// assert_eq!(heads.effect().largest(1)[0].0, nats.effect().largest(1)[0].0); // the same head
/// # Ok::<(), hooklens::Error>(())
/// ```
#[must_use = "choose a metric to get a `Patching`"]
pub struct PatchPrompts<'m, M: Patchable> {
    model: &'m M,
    /// Prompts whose runs are patched.
    base: M::Input,
    from: PatchesFrom<M::Input>,
}

/// The source of the patches.
enum PatchesFrom<I> {
    Clean(I),
    Ablation(Ablation<I>),
}

impl<'m, M: Patchable> PatchPrompts<'m, M> {
    pub(super) fn pairs(model: &'m M, clean: M::Input, corrupted: M::Input) -> Self {
        Self { model, base: corrupted, from: PatchesFrom::Clean(clean) }
    }

    pub(super) fn ablated(model: &'m M, prompts: M::Input, ablation: Ablation<M::Input>) -> Self {
        Self { model, base: prompts, from: PatchesFrom::Ablation(ablation) }
    }

    /// Uses a logit difference as the metric. See [`Metric::logit_diff`].
    ///
    /// # Errors
    /// Same as [`Metric::logit_diff`] and [`Patching::new`].
    pub fn logit_diff(self, answer: impl Into<TokenChoice>, wrong: impl Into<TokenChoice>) -> Result<Patching<'m, M>> {
        let metric = Metric::logit_diff(self.model, answer, wrong)?;
        self.metric(metric)
    }

    /// Uses this metric.
    ///
    /// # Errors
    /// Same as [`Patching::new`].
    pub fn metric(self, metric: Metric) -> Result<Patching<'m, M>> {
        match self.from {
            PatchesFrom::Clean(clean) => Patching::new(self.model, clean, self.base, metric),
            PatchesFrom::Ablation(ablation) => Patching::ablating(self.model, self.base, ablation, metric),
        }
    }
}

impl<M: Patchable> std::fmt::Debug for PatchPrompts<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PatchPrompts(no metric chosen)")
    }
}
