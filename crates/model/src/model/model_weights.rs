//! Access to a model's weights.

use super::named::Weights;
use super::parts::Parts;
use super::report::LoadReport;
use crate::error::Result;

/// Reading, replacing, freezing and training a model's weights. This trait is in the prelude.
pub trait ModelWeights: Sized {
    /// Type that holds the weights.
    type Parts: Parts;

    /// The weights, by name. Matrices may have a narrower element type than the model computes in.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.weights().get::<2>("blocks.0.mlp.W_in")?.dims(), [64, 256]);
    /// let bert = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// assert_eq!(bert.weights().get::<2>("pooler.W")?.dims(), [24, 24]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn weights(&self) -> &Weights<Self::Parts>;

    /// Mutable access to the weights, to replace or freeze some of them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let mut model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let silent = model.weights().get::<2>("blocks.0.attn.W_O")?.zeros_like();
    /// model.weights_mut().set("blocks.0.attn.W_O", silent)?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn weights_mut(&mut self) -> &mut Weights<Self::Parts>;

    /// Returns the model with `change` applied to its weights, such as a step of one of Burn's optimizers.
    ///
    /// ```
    /// use burn::optim::{AdamWConfig, GradientsParams};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    /// let mut optimizer = AdamWConfig::new().init();
    /// let gradients = model.loss("When Mary and John")?.backward();
    /// let gradients = GradientsParams::from_grads(gradients, model.weights());
    /// let model = model.map_weights(|weights| optimizer.step(1e-3, weights, gradients));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    fn map_weights(self, change: impl FnOnce(Weights<Self::Parts>) -> Weights<Self::Parts>) -> Self;

    /// Fingerprint of the model: a hash (XXH3, 128 bits) of the configuration and of every weight's name, shape,
    /// element type and bytes in memory.
    ///
    /// A different model, processing, element type or edit gives a different fingerprint. Equal weights give the same
    /// fingerprint in every process, however they were loaded. Each call reads all weights, a few megabytes at a time;
    /// half a gigabyte takes about half a second on two cores.
    ///
    /// The fingerprint guards against mistakes, not against weights crafted to collide.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::standard())?;
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, folded.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the weights cannot be read from the device.
    fn fingerprint(&self) -> Result<String>;

    /// How each tensor in the model's files was used.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert!(model.load_report().applied.iter().any(|name| name.starts_with("decoder.")));
    /// assert!(model.load_report().unused.is_empty());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn load_report(&self) -> &LoadReport;
}
