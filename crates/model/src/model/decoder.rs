//! Decoder-only operations: next-token loss and cache prefill.

use burn::tensor::Tensor;

use super::input::DecoderInput;
use super::output::Output;
use super::transformer::HookedTransformer;
use crate::driver::{ForwardOptions, Hooked, HookedModel, Input, Logits, unhooked};
use crate::error::{InputError, Result};
use crate::kv_cache::KeyValueCache;

/// Access to the decoder that a [`DecoderModel`] runs.
pub trait Decoder {
    /// The decoder, without hooks.
    fn transformer(&self) -> &HookedTransformer;
}

/// A decoder, or a decoder with persistent hooks.
pub trait DecoderModel: Decoder + HookedModel<Input = Input, Output = Output, Scored = Tensor<3>> {
    /// Mean cross-entropy of next-token predictions, `[1]`, in nats. Padding is not counted.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let uniform = (63f32).ln(); // loss of a uniform prediction over 63 tokens
    /// let loss = model.loss("red fox tea red fox tea red fox tea")?.into_scalar::<f32>();
    /// assert!(loss < uniform, "{loss}"); // the model predicts the repetition
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`].
    fn loss(&self, input: impl Into<Input>) -> Result<Tensor<1>> {
        self.loss_with(input, ForwardOptions::new())
    }

    /// Like [`loss`](DecoderModel::loss), for a run with options, such as hooks or a cache to continue. With the option
    /// `start_at_layer`, the input is a residual stream.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let ablated = ForwardOptions::new().hooks([hook::attn_out(1).zero()]);
    /// let text = "red fox tea red fox tea";
    /// assert!(model.loss_with(text, ablated)?.into_scalar::<f32>() > model.loss(text)?.into_scalar::<f32>());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward_with`].
    fn loss_with<'h>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Tensor<1>> {
        let loss = self.run(input, options.into().loss())?.loss;
        Ok(loss.ok_or(InputError::NoOutput { what: "loss" })?)
    }

    /// Runs the model on a prefix and returns its key-value cache. [`KeyValueCache::interventions`] lists the hooks
    /// that edited activations.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let king = model.to_single_token("king")?;
    /// let next = model.forward_with([king], ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!((next.dims()[..2].to_vec(), cache.len()), (vec![1, 1], 6));
    /// let cache = model.hooks([hook::z(0).zero()]).prefill("king drum")?;
    /// assert_eq!((cache.len(), cache.interventions().len()), (3, 1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`].
    fn prefill(&self, input: impl Into<Input>) -> Result<KeyValueCache> {
        let model = self.transformer();
        let tokens = model.token_input(input.into())?;
        let mut cache = KeyValueCache::new(model.config(), tokens.shape()[0]);
        self.run(tokens, ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache))?;
        Ok(cache)
    }
}

impl Decoder for HookedTransformer {
    fn transformer(&self) -> &HookedTransformer {
        self
    }
}

impl<M: Decoder> Decoder for Hooked<'_, '_, M> {
    fn transformer(&self) -> &HookedTransformer {
        unhooked(self).transformer()
    }
}

impl DecoderModel for HookedTransformer {}

impl<M: DecoderModel> DecoderModel for Hooked<'_, '_, M> {}
