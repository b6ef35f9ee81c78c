//! Runs with gradients of a scalar with respect to activations.

use burn::tensor::Tensor;
use hooklens_hooks::{Hook, Record, with_gradients};

use super::{ForwardOptions, HookedModel, Logits, RunOutput};
use crate::error::{CacheError, Error, InputError, Result};

/// Implements [`HookedModel::run_with_gradients`].
pub(super) fn run_with_gradients<M: HookedModel>(
    model: &M,
    input: M::Input,
    options: ForwardOptions<'_>,
    scalar: impl FnOnce(M::Scored) -> Tensor<1>,
) -> Result<M::Output> {
    if options.kv_cache.as_ref().is_some_and(|cache| !cache.is_frozen()) {
        return Err(CacheError::Gradients.into());
    }
    // An encoder without logits still has a residual stream to compute a scalar from.
    let no_logits = options.logits == Logits::None && M::NEEDS_LOGITS;
    if options.stop_at_layer.is_some() || no_logits {
        let option = if no_logits { "Logits::None" } else { "stop_at_layer" };
        let reason = "gradients are taken of a scalar computed from the logits, so the run must compute the logits";
        return Err(InputError::Conflict { option, with: "run_with_gradients", reason }.into());
    }
    let ForwardOptions { hooks, record, mut kv_cache, copies, .. } = options;
    let (logits, start, mask, tokens) =
        (options.logits, options.start_at_layer, options.attention_mask, options.tokens);
    let mut run = |hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
        let mut again = ForwardOptions::new().hooks(hooks).record(record);
        again.logits = if whole { logits } else { Logits::None };
        again.loss = options.loss && whole;
        again.loss_per_token = options.loss_per_token && whole;
        (again.start_at_layer, again.attention_mask, again.tokens) = (start, mask.clone(), tokens.clone());
        again.kv_cache = kv_cache.as_deref_mut();
        again.copies = copies;
        model.run(input.clone(), again)
    };
    with_gradients::<M::Output, Error>(model.catalog(), hooks, record, &mut run, RunOutput::cache, |output| {
        Ok((scalar(M::scored(&output)?), output.without_history()))
    })
}
