//! Encoders' runs with gradients.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use super::{EncoderInput, EncoderOptions, EncoderOutput, Heads, HookedEncoder};
use crate::error::Result;
use crate::gradients::{RunOutput, with_gradients};

impl HookedEncoder {
    /// Runs the model, makes a number of what it gives, and records how that changes with each activation recorded:
    /// as [`HookedTransformer::run_with_gradients`](crate::HookedTransformer::run_with_gradients), hooks on gradients
    /// included; each edited gradient costs another whole run.
    ///
    /// # Shapes
    /// - the number: `[1]`; several are summed
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::encoder::HookedEncoder;
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let output = model.run_with_gradients(vec![vec![2, 5, 9, 3]], Record::new("*hook_z"), |output| {
    ///     output.hidden.clone().narrow(1, 0, 1).square().sum() // or of `output.logits`, `output.next_sentence`, ...
    /// })?;
    /// let (z, grad) = (output.cache.get(hook::z(1))?, output.cache.grad(hook::z(1))?);
    /// assert_eq!(z.dims(), grad.dims());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoder::run`]; a recording of parts of activations; a number that does not depend on any recorded
    /// activation.
    pub fn run_with_gradients<'h>(
        &self,
        input: impl Into<EncoderInput>,
        options: impl Into<EncoderOptions<'h>>,
        number: impl FnOnce(&EncoderOutput) -> Tensor<1>,
    ) -> Result<EncoderOutput> {
        let tokens = self.to_tokens(input)?;
        let EncoderOptions { hooks, record } = options.into();
        let mut run = |hooks: Vec<Hook<'_>>, record: Record, whole: bool| {
            let wanted = if whole { self.heads() } else { Heads::NONE };
            self.run_tokens(&tokens, EncoderOptions { hooks, record }, wanted)
        };
        with_gradients(self.catalog(), hooks, record, &mut run, |output| Ok(number(output)))
    }
}

impl RunOutput for EncoderOutput {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn without_history(self) -> Self {
        Self {
            hidden: self.hidden.without_autodiff(),
            logits: self.logits.map(Tensor::without_autodiff),
            pooled: self.pooled.map(Tensor::without_autodiff),
            next_sentence: self.next_sentence.map(Tensor::without_autodiff),
            cache: self.cache.map(|held| held.detached()),
        }
    }
}
