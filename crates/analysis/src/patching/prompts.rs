//! Prompts of a sweep whose metric is not chosen yet.

use burn::tensor::Tensor;

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
/// let heads = model.patching(clean, corrupted).logit("Mary")?.attn_head_out_all_pos()?;
/// let nats = model.patching(clean, corrupted).log_prob("Mary")?.attn_head_out_all_pos()?;
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

    /// Measures a logit difference: see [`Metric::logit_diff`].
    ///
    /// # Errors
    /// Same as [`Metric::logit_diff`] and [`Patching::new`].
    pub fn logit_diff(self, answer: impl Into<TokenChoice>, wrong: impl Into<TokenChoice>) -> Result<Patching<'m, M>> {
        let metric = Metric::logit_diff(self.model, answer, wrong)?;
        self.metric(metric)
    }

    /// Measures the logit of a token: see [`Metric::logit`].
    ///
    /// # Errors
    /// Same as [`Metric::logit`] and [`Patching::new`].
    pub fn logit(self, answer: impl Into<TokenChoice>) -> Result<Patching<'m, M>> {
        let metric = Metric::logit(self.model, answer)?;
        self.metric(metric)
    }

    /// Measures the log-probability of a token, in nats: see [`Metric::log_prob`].
    ///
    /// # Errors
    /// Same as [`Metric::log_prob`] and [`Patching::new`].
    pub fn log_prob(self, answer: impl Into<TokenChoice>) -> Result<Patching<'m, M>> {
        let metric = Metric::log_prob(self.model, answer)?;
        self.metric(metric)
    }

    /// Measures a custom function of each row's last logits, `[row, d_vocab_out]` of one example to `[row]`: see
    /// [`Metric::last`].
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let patching = model.patching("When Mary", "When John").of(|logits: Tensor<2>, _| logits.max_dim(1).squeeze_dim(1))?;
    /// assert_eq!(patching.examples(), 1);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::new`].
    pub fn of(self, judge: impl Fn(Tensor<2>, usize) -> Tensor<1> + Send + Sync + 'static) -> Result<Patching<'m, M>> {
        self.metric(Metric::last(judge))
    }

    /// Measures this metric.
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
