//! Runs of an encoder with a decoder, with gradients.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use super::{EncoderDecoderOptions, EncoderDecoderOutput, HookedEncoderDecoder};
use crate::error::Result;
use crate::gradients::{RunOutput, logits_of, with_gradients};
use crate::model::{Input, Logits};

impl HookedEncoderDecoder {
    /// Runs encoder and decoder, makes a number of the logits, and records how it changes with each activation
    /// recorded, the encoder's too: as
    /// [`HookedTransformer::run_with_gradients`](crate::HookedTransformer::run_with_gradients), hooks on gradients
    /// included; each edited gradient costs another whole run.
    ///
    /// # Shapes
    /// - logits: `[batch, decoder_pos, d_vocab]`, or `[batch, 1, d_vocab]` for [`Logits::Last`]
    /// - the number: `[1]`; several are summed
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::encoder_decoder::{EncoderDecoderOptions, HookedEncoderDecoder};
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let options = EncoderDecoderOptions::new().logits(Logits::Last).record("encoder.*.hook_resid_post");
    /// let written = vec![vec![0, 4]];
    /// let output =
    ///     model.run_with_gradients(vec![vec![5, 6, 7, 1]], written, options, |logits| logits.narrow(2, 9, 1).sum())?;
    /// let grad = output.cache.activation("encoder.0.hook_resid_post_grad")?; // what token 9 owes to the input's places
    /// assert_eq!(grad.shape(), [1, 4, model.config().d_model]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::run`]; no logits, a recording of parts of activations, a number that does not depend on
    /// any recorded activation.
    pub fn run_with_gradients<'h>(
        &self,
        input: impl Into<Input>,
        decoder_input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
        number: impl FnOnce(Tensor<3>) -> Tensor<1>,
    ) -> Result<EncoderDecoderOutput> {
        let (input, written) = (input.into(), decoder_input.into());
        let EncoderDecoderOptions { hooks, record, logits } = options.into();
        let mut run = |hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
            let logits = if whole { logits } else { Logits::None };
            self.run(input.clone(), written.clone(), EncoderDecoderOptions { hooks, record, logits })
        };
        with_gradients(self.catalog(), hooks, record, &mut run, |output| Ok(number(logits_of(&output.logits)?)))
    }
}

impl RunOutput for EncoderDecoderOutput {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn without_history(self) -> Self {
        Self { logits: self.logits.map(Tensor::without_autodiff), cache: self.cache.map(|held| held.detached()) }
    }
}
