//! Gradients of a scalar of the logits with respect to activations.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use super::input::Input;
use super::options::{ForwardOptions, Logits, Output};
use super::transformer::HookedTransformer;
use crate::error::{InputError, Result};
use crate::gradients::{RunOutput, logits_of, with_gradients};

impl HookedTransformer {
    /// Runs the model, computes a scalar of the logits, and records its gradient with respect to each
    /// recorded activation: the output's cache holds both, `hook::z(3)` by
    /// [`get`](crate::ActivationCache::get) and its gradient by
    /// [`grad`](crate::ActivationCache::grad), or by name as `blocks.3.attn.hook_z_grad`.
    ///
    /// The weights need no gradients and get none. Hooks on gradients
    /// ([`edit_grad`](crate::hook::Point::edit_grad), [`read_grad`](crate::hook::Point::read_grad))
    /// run in the backward pass, last point first; an edited gradient is what is passed on and
    /// recorded. Each edited gradient costs another run up to its point, so hooks may be
    /// called several times.
    ///
    /// # Shapes
    /// - logits: `[batch, pos, d_vocab_out]`, or `[batch, 1, d_vocab_out]` for [`Logits::Last`]
    /// - the scalar: `[1]`; several values are summed
    ///
    /// # Errors
    /// As [`HookedTransformer::run`]; a recording of parts of activations, or a key-value cache that
    /// grows; a scalar that does not depend on any recorded activation.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let (mary, john) = (model.to_single_token("Mary")? as usize, model.to_single_token("John")? as usize);
    /// let options = ForwardOptions::new().logits(Logits::Last).record("*hook_z");
    /// let output = model.run_with_gradients(prompt, options, |logits| {
    ///     (logits.clone().narrow(2, mary, 1) - logits.narrow(2, john, 1)).reshape([1])
    /// })?;
    /// let (z, grad) = (output.cache.get(hook::z(3))?, output.cache.grad(hook::z(3))?);
    /// assert_eq!(z.dims(), grad.dims());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn run_with_gradients<'h>(
        &self,
        input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
        number: impl FnOnce(Tensor<3>) -> Tensor<1>,
    ) -> Result<Output> {
        let options = options.into();
        let input = input.into();
        if options.kv_cache.as_ref().is_some_and(|cache| !cache.is_frozen()) {
            return Err(InputError::Options("a run with gradients can't add to a key-value cache; freeze it").into());
        }
        if options.logits == Logits::None || options.stop_at_layer.is_some() {
            return Err(
                InputError::Options("gradients are of a number made of the logits: let the run come to them").into()
            );
        }
        let ForwardOptions { hooks, record, mut kv_cache, .. } = options;
        let (logits, start, mask, tokens) =
            (options.logits, options.start_at_layer, options.attention_mask, options.tokens);
        let mut run = |hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
            let mut again = ForwardOptions::new().hooks(hooks).record(record);
            again.logits = if whole { logits } else { Logits::None };
            again.loss = options.loss && whole;
            again.loss_per_token = options.loss_per_token && whole;
            (again.start_at_layer, again.attention_mask, again.tokens) = (start, mask.clone(), tokens.clone());
            again.kv_cache = kv_cache.as_deref_mut();
            self.run(input.clone(), again)
        };
        with_gradients(self.catalog(), hooks, record, &mut run, |output| Ok(number(logits_of(&output.logits)?)))
    }
}

impl RunOutput for Output {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn without_history(self) -> Self {
        Self {
            logits: self.logits.map(Tensor::without_autodiff),
            loss: self.loss.map(Tensor::without_autodiff),
            loss_per_token: self.loss_per_token.map(Tensor::without_autodiff),
            residual: self.residual,
            cache: self.cache.map(|held| held.detached()),
        }
    }
}
