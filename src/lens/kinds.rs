//! The logit lens of encoders and of the decoder behind an encoder.

use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::Record;

use super::reading::LensReading;
use crate::activations::MadeOf;
use crate::driver::HookedModel;
use crate::encoder::{EncoderInput, HookedEncoder};
use crate::encoder_decoder::{EncoderDecoderInput, HookedEncoderDecoder};
use crate::error::{InputError, Result};

impl HookedEncoder {
    /// Logits of a residual stream as if it were the last layer's, `[batch, pos, d_vocab]`: the last norm, of a model whose
    /// blocks do not normalize the stream, and the masked-token head.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let gap = model.unembed(model.encode([2, 5, 9, 3])?)? - model.forward([2, 5, 9, 3])?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NoHead`] if the model has no masked-token head, [`InputError::Residual`] for a stream of another
    /// width.
    pub fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        check_width(&stream, self.config().d_model)?;
        let head = self.weights.mlm_head.as_ref().ok_or(InputError::NoHead { head: "masked-token" })?;
        let stream = match &self.weights.ln_final {
            Some(ln_final) => ln_final.without_hooks(stream),
            None => stream,
        };
        let features = self.config().head_activation.apply(head.dense.forward(stream));
        Ok(head.unembed.forward(head.ln.without_hooks(features)))
    }

    /// The logit lens (nostalgebraist 2020): the masked-token head applied to the stream before each layer and after
    /// the last.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let reading = model.logit_lens([2, 5, 9, 3])?;
    /// assert_eq!(reading.labels(), ["0_pre", "1_pre", "final_post"]);
    /// // The last stage is what the model says.
    /// assert!(reading.kl_to_final().narrow(0, 2, 1).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`] and [`HookedEncoder::unembed`].
    pub fn logit_lens(&self, input: impl Into<EncoderInput>) -> Result<LensReading> {
        let layers = self.config().n_layers;
        let point = if self.config().pre_norms { "hook_resid_post" } else { "hook_normalized_resid_post" };
        let last = format!("blocks.{}.{point}", layers.saturating_sub(1));
        through(self, input.into(), "blocks", layers, &last, |stream| self.unembed(stream))
    }
}

impl HookedEncoderDecoder {
    /// Logits of the decoder's residual stream as if it were the last layer's, `[batch, decoder_pos, d_vocab]`: its
    /// last norm and the unembedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let input = ([5, 6, 7, 1], [0, 4]);
    /// let last: Tensor<3> = model.record(input, "decoder.1.hook_resid_post")?.get("decoder.1.hook_resid_post")?;
    /// let gap = model.unembed(last)? - model.forward(input)?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Residual`] for a stream of another width.
    pub fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        check_width(&stream, self.config().d_decoder_model)?;
        Ok(self.logits(self.weights.decoder_ln.without_hooks(stream)))
    }

    /// The logit lens (nostalgebraist 2020) of the decoder: its last norm and the unembedding applied to its stream
    /// before each layer and after the last.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let reading = model.logit_lens(([5, 6, 7, 1], [0, 4]))?;
    /// assert_eq!(reading.logits().dims()[..3], [3, 1, 2]); // [stage, batch, decoder_pos]
    /// assert!(reading.kl_to_final().narrow(0, 2, 1).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`].
    pub fn logit_lens(&self, input: impl Into<EncoderDecoderInput>) -> Result<LensReading> {
        let layers = self.config().n_decoder_layers;
        let point = if self.config().norm_after { "hook_normalized_resid_post" } else { "hook_resid_post" };
        let last = format!("decoder.{}.{point}", layers.saturating_sub(1));
        through(self, input.into(), "decoder", layers, &last, |stream| self.unembed(stream))
    }
}

/// The streams before each layer of a stack of blocks and after the last, unembedded.
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

fn check_width(stream: &Tensor<3>, d_model: usize) -> Result<()> {
    match stream.dims() {
        [_, _, width] if width == d_model => Ok(()),
        given => Err(InputError::Residual { given: given.to_vec(), d_model }.into()),
    }
}
