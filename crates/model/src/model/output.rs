//! The output of a decoder's run.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Detach};

use crate::driver::{RunOutput, logits_of, private};
use crate::error::{InputError, Result};

/// The output of a run. Outputs that were not requested are `None`; if nothing was recorded, the cache is empty.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let output = model.run("red fox red", ForwardOptions::new().loss().record(hook::z(0)))?;
/// assert!(output.logits.is_some() && output.loss.is_some() && output.cache.len() == 1);
/// assert!(output.loss_per_token.is_none() && output.residual.is_none()); // not requested
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Output {
    /// Logits, `[batch, pos, d_vocab_out]`, or `[batch, 1, d_vocab_out]` for
    /// [`Logits::Last`](crate::driver::Logits::Last).
    pub logits: Option<Tensor<3>>,
    /// Mean cross-entropy over unmasked next tokens, `[1]`, in nats.
    pub loss: Option<Tensor<1>>,
    /// Cross-entropy of each next token, `[batch, pos - 1]`, in nats; 0 at padding and at a row's last token, which
    /// predict nothing.
    pub loss_per_token: Option<Tensor<2>>,
    /// The residual stream at `stop_at_layer`, `[batch, pos, d_model]`.
    pub residual: Option<Tensor<3>>,
    /// The recorded activations.
    pub cache: ActivationCache,
    /// Whether the model has no unembedding.
    pub(crate) headless: bool,
}

impl private::Sealed for Output {}

impl RunOutput for Output {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn main(&self) -> Result<Tensor<3>> {
        match &self.residual {
            Some(residual) => Ok(residual.clone()),
            None if self.headless => Err(InputError::NoHead { head: "unembedding" }.into()),
            None => logits_of(&self.logits),
        }
    }

    fn without_history(self) -> Self {
        Self {
            logits: self.logits.map(Tensor::without_autodiff),
            loss: self.loss.map(Tensor::without_autodiff),
            loss_per_token: self.loss_per_token.map(Tensor::without_autodiff),
            residual: self.residual,
            cache: self.cache.detached(),
            headless: self.headless,
        }
    }
}
