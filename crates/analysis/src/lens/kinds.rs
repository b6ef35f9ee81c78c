//! The logit lens of encoders and encoder-decoders.

use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::Record;

use super::reading::LensReading;
use crate::activations::MadeOf;
use hooklens_model::driver::HookedModel;
use hooklens_model::encoder::{self, EncoderInput, HookedEncoder};
use hooklens_model::encoder_decoder::{self, EncoderDecoderInput, HookedEncoderDecoder};
use hooklens_model::error::Result;

/// The logit lens of encoders and encoder-decoders. Part of the prelude. For a `HookedTransformer`, see
/// [`Analysis::logit_lens`](crate::activations::Analysis::logit_lens).
pub trait LogitLens: HookedModel {
    /// The logit lens (nostalgebraist 2020): decodes the residual stream before each layer and after the last layer
    /// with an encoder's masked-token head or an encoder-decoder's unembedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let reading = model.logit_lens([2, 5, 9, 3])?;
    /// assert_eq!(reading.labels, ["0_pre", "1_pre", "final_post"]);
    /// // The last stage is the model's own prediction.
    /// assert!(reading.kl_to_final().narrow(0, 2, 1).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`] and [`HookedModel::unembed`].
    fn logit_lens(&self, input: impl Into<Self::Input>) -> Result<LensReading>;
}

impl LogitLens for HookedEncoder {
    fn logit_lens(&self, input: impl Into<EncoderInput>) -> Result<LensReading> {
        let layers = self.config().n_layers();
        let point = if encoder::config_of(self).pre_norms { "hook_resid_post" } else { "hook_normalized_resid_post" };
        let last = format!("blocks.{}.{point}", layers.saturating_sub(1));
        through(self, input.into(), "blocks", layers, &last, |stream| self.unembed(stream))
    }
}

impl LogitLens for HookedEncoderDecoder {
    fn logit_lens(&self, input: impl Into<EncoderDecoderInput>) -> Result<LensReading> {
        let layers = self.decoder_config().n_layers();
        let point =
            if encoder_decoder::config_of(self).norm_after { "hook_normalized_resid_post" } else { "hook_resid_post" };
        let last = format!("decoder.{}.{point}", layers.saturating_sub(1));
        through(self, input.into(), "decoder", layers, &last, |stream| self.unembed(stream))
    }
}

/// Decodes the residual stream before each layer of a stack and after the last layer.
fn through<M: HookedModel>(
    model: &M,
    input: M::Input,
    stack: &str,
    layers: usize,
    last: &str,
    unembed: impl Fn(Tensor<3>) -> Result<Tensor<3>>,
) -> Result<LensReading> {
    let mut names: Vec<String> = (0..layers).map(|layer| format!("{stack}.{layer}.hook_resid_pre")).collect();
    names.push(last.to_string());
    let cache = model.record(input, Record::new(names.clone()))?;
    let logits = names.iter().map(|name| Ok(unembed(cache.get(name)?)?.unsqueeze_dim(0)));
    let logits = logits.collect::<Result<Vec<Tensor<4>>>>()?;
    let mut labels: Vec<String> = (0..layers).map(|layer| format!("{layer}_pre")).collect();
    labels.push("final_post".into());
    Ok(LensReading::new(labels, Tensor::cat(logits, 0), Arc::new(MadeOf::whole(&cache)?)))
}
