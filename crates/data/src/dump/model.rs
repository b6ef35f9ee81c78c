//! The interface between a dump and a model.

use burn::tensor::Tensor;
use hooklens_hooks::{PointId, Record, Segment};
use serde_json::{Map, Value};

use crate::error::DumpError;
use hooklens_analysis::experiments::SharedPrefix;
use hooklens_model::config::Settings;
use hooklens_model::driver::private::{self, Spliceable};
use hooklens_model::driver::{ForwardOptions, Hooked, HookedModel, Input, Logits, unhooked};
use hooklens_model::encoder::{self, EncoderInput, EncoderOutput, HookedEncoder};
use hooklens_model::encoder_decoder::{self, EncoderDecoderInput, EncoderDecoderOutput, HookedEncoderDecoder};
use hooklens_model::error::{InputError, Result};
use hooklens_model::kv_cache::KeyValueCache;
use hooklens_model::model::{DecoderInput, HookedTransformer, Identified, ModelWeights, Output};
use hooklens_model::processing::processing_options;
use hooklens_model::tokens::{Tokens, check_ids};

/// Function that runs a model or a hooked view of it.
pub(super) type RunWith<'r, I, O> = &'r dyn Fn(I, ForwardOptions<'_>) -> Result<O>;

/// A model whose activations can be dumped: a decoder, an encoder or an encoder-decoder, including spliced parts and
/// persistent hooks.
pub trait DumpModel: HookedModel + private::Sealed {
    /// Whether the model has logits at each token of the prompts.
    #[doc(hidden)]
    const LOGITS: bool = true;

    /// Hash of configuration and weights.
    #[doc(hidden)]
    fn fingerprint_of_weights(&self) -> Result<String>;

    /// Hash of configuration and weights that is fast to compute, if available.
    #[doc(hidden)]
    fn identity_of_weights(&self) -> Option<String>;

    /// Parts spliced into the model, each with its location and, if available, the hash of its weights.
    #[doc(hidden)]
    fn parts(&self) -> Result<Vec<String>>;

    /// Name that the model was loaded by.
    #[doc(hidden)]
    fn name(&self) -> &str;

    /// Processing applied to the weights, under TransformerLens's names.
    #[doc(hidden)]
    fn processing_options(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Beginning-of-sequence token of the model.
    #[doc(hidden)]
    fn beginning(&self) -> Option<u32> {
        None
    }

    /// Tokenizes prompts that follow `before` other tokens. Returns one unpadded row per prompt.
    #[doc(hidden)]
    fn prompts(&self, prompts: Input, before: usize) -> Result<Vec<Vec<u32>>>;

    /// Fails if the model can't run a prompt after `before` other positions.
    #[doc(hidden)]
    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()>;

    /// Fails if the decoder of an encoder-decoder can't have produced these tokens after `before` others.
    #[doc(hidden)]
    fn check_written(&self, _row: &[u32], _before: usize) -> Result<()> {
        Err(no_encoder_rows().into())
    }

    /// Fails unless a point's positions are positions in the prompts, which are the decoder's tokens if `written`, else
    /// the encoder's tokens.
    #[doc(hidden)]
    fn check_point(&self, _point: PointId, _written: bool) -> Result<()> {
        Ok(())
    }

    /// Token id used to pad rows.
    #[doc(hidden)]
    fn filler(&self) -> u32;

    /// Converts a batch to the model's input.
    #[doc(hidden)]
    fn batch(tokens: Tokens) -> Self::Input;

    /// Combines a batch of encoder tokens and decoder tokens into the model's input.
    #[doc(hidden)]
    fn batch_written(&self, _read: Tokens, _written: Tokens) -> Result<Self::Input> {
        Err(no_encoder_rows().into())
    }

    /// Takes the logits of a run, `[batch, pos, d_vocab]`.
    #[doc(hidden)]
    fn logits(output: &mut Self::Output) -> Option<Tensor<3>>;

    /// Creates a shared prefix, if the model can continue from a key-value cache.
    #[doc(hidden)]
    fn sharing(&self, record: Record, logits: Logits) -> Option<SharedPrefix<'_>>;

    /// Runs a prefix with `run`, which may add hooks, and returns the prefix's frozen key-value cache.
    #[doc(hidden)]
    fn behind(&self, prefix: &[u32], run: RunWith<'_, Self::Input, Self::Output>) -> Result<KeyValueCache>;
}

impl DumpModel for HookedTransformer {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn identity_of_weights(&self) -> Option<String> {
        self.identity().content().map(str::to_string)
    }

    fn parts(&self) -> Result<Vec<String>> {
        Ok(self.points().fingerprinted_parts()?)
    }

    fn name(&self) -> &str {
        &self.load_report().name
    }

    fn processing_options(&self) -> Map<String, Value> {
        processing_options(self)
    }

    fn beginning(&self) -> Option<u32> {
        self.bos_token()
    }

    fn prompts(&self, prompts: Input, before: usize) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| self.token_input_after(tokens, &[before]))
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        self.check_length(before + prompt.len())?;
        Ok(self.check_tokens(&Tokens::new(vec![prompt.to_vec()])?)?)
    }

    fn filler(&self) -> u32 {
        filler(self, self.config().d_vocab())
    }

    fn batch(tokens: Tokens) -> Input {
        tokens.into()
    }

    fn logits(output: &mut Output) -> Option<Tensor<3>> {
        output.logits.take()
    }

    fn sharing(&self, record: Record, logits: Logits) -> Option<SharedPrefix<'_>> {
        (!self.config().bidirectional()).then(|| SharedPrefix::new(self, record, logits))
    }

    fn behind(&self, prefix: &[u32], run: RunWith<'_, Input, Output>) -> Result<KeyValueCache> {
        let mut cache = KeyValueCache::new(self.config(), 1);
        run(prefix.into(), ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache))?;
        cache.freeze();
        Ok(cache)
    }
}

impl DumpModel for HookedEncoder {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn identity_of_weights(&self) -> Option<String> {
        self.identity().content().map(str::to_string)
    }

    fn parts(&self) -> Result<Vec<String>> {
        Ok(self.points().fingerprinted_parts()?)
    }

    fn name(&self) -> &str {
        &self.load_report().name
    }

    fn prompts(&self, prompts: Input, _: usize) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| Ok(self.to_tokens(tokens)?.tokens))
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        if before > 0 {
            return Err(no_prefix().into());
        }
        encoder::check_length(self, prompt.len())?;
        Ok(check_ids(&Tokens::new(vec![prompt.to_vec()])?, self.config().d_vocab())?)
    }

    fn filler(&self) -> u32 {
        filler(self, self.config().d_vocab())
    }

    fn batch(tokens: Tokens) -> EncoderInput {
        tokens.into()
    }

    fn logits(output: &mut EncoderOutput) -> Option<Tensor<3>> {
        output.logits.take()
    }

    fn sharing(&self, _: Record, _: Logits) -> Option<SharedPrefix<'_>> {
        None
    }

    fn behind(&self, _: &[u32], _: RunWith<'_, EncoderInput, EncoderOutput>) -> Result<KeyValueCache> {
        Err(no_prefix().into())
    }
}

impl<M: DumpModel> DumpModel for Hooked<'_, '_, M> {
    const LOGITS: bool = M::LOGITS;

    fn fingerprint_of_weights(&self) -> Result<String> {
        unhooked(self).fingerprint_of_weights()
    }

    fn identity_of_weights(&self) -> Option<String> {
        unhooked(self).identity_of_weights()
    }

    fn parts(&self) -> Result<Vec<String>> {
        unhooked(self).parts()
    }

    fn name(&self) -> &str {
        unhooked(self).name()
    }

    fn processing_options(&self) -> Map<String, Value> {
        unhooked(self).processing_options()
    }

    fn beginning(&self) -> Option<u32> {
        unhooked(self).beginning()
    }

    fn prompts(&self, prompts: Input, before: usize) -> Result<Vec<Vec<u32>>> {
        unhooked(self).prompts(prompts, before)
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        unhooked(self).check_prompt(prompt, before)
    }

    fn check_written(&self, row: &[u32], before: usize) -> Result<()> {
        unhooked(self).check_written(row, before)
    }

    fn check_point(&self, point: PointId, written: bool) -> Result<()> {
        unhooked(self).check_point(point, written)
    }

    fn filler(&self) -> u32 {
        unhooked(self).filler()
    }

    fn batch(tokens: Tokens) -> M::Input {
        M::batch(tokens)
    }

    fn batch_written(&self, read: Tokens, written: Tokens) -> Result<M::Input> {
        unhooked(self).batch_written(read, written)
    }

    fn logits(output: &mut M::Output) -> Option<Tensor<3>> {
        M::logits(output)
    }

    /// A hook may act differently at each position, so prefixes are not shared if there are hooks.
    fn sharing(&self, _: Record, _: Logits) -> Option<SharedPrefix<'_>> {
        None
    }

    fn behind(&self, prefix: &[u32], run: RunWith<'_, M::Input, M::Output>) -> Result<KeyValueCache> {
        unhooked(self).behind(prefix, run)
    }
}

/// Dumps activations of the encoder or, with [`Dump::encoder_rows`](super::Dump::encoder_rows), of the decoder.
impl DumpModel for HookedEncoderDecoder {
    const LOGITS: bool = false;

    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn identity_of_weights(&self) -> Option<String> {
        self.identity().content().map(str::to_string)
    }

    fn parts(&self) -> Result<Vec<String>> {
        Ok(self.points().fingerprinted_parts()?)
    }

    fn name(&self) -> &str {
        &self.load_report().name
    }

    fn prompts(&self, prompts: Input, _: usize) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| Ok(encoder_decoder::both_tokens(self, tokens.into())?.0))
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        check_row(prompt, before, (self.encoder_config().n_ctx(), self.encoder_config().d_vocab()))
    }

    fn check_written(&self, row: &[u32], before: usize) -> Result<()> {
        check_row(row, before, (self.decoder_config().n_ctx(), self.decoder_config().d_vocab()))
    }

    fn check_point(&self, id: PointId, written: bool) -> Result<()> {
        let point = self.catalog().info(id);
        let name = || point.name.to_string();
        match (point.segment, written) {
            (Segment::Encoder, false) => Ok(()),
            (_, false) => Err(DumpError::OfDecoder { point: name() }.into()),
            (Segment::Encoder | Segment::CrossKeys, true) => Err(DumpError::OfEncoder { point: name() }.into()),
            (_, true) if encoder_decoder::attends_to_encoder(self, id) => {
                Err(DumpError::OfEncoder { point: name() }.into())
            }
            (_, true) => Ok(()),
        }
    }

    fn filler(&self) -> u32 {
        filler(self, self.encoder_config().d_vocab().min(self.decoder_config().d_vocab()))
    }

    fn batch(tokens: Tokens) -> EncoderDecoderInput {
        tokens.into()
    }

    fn batch_written(&self, read: Tokens, written: Tokens) -> Result<EncoderDecoderInput> {
        Ok((read, written).into())
    }

    fn logits(output: &mut EncoderDecoderOutput) -> Option<Tensor<3>> {
        output.logits.take()
    }

    fn sharing(&self, _: Record, _: Logits) -> Option<SharedPrefix<'_>> {
        None
    }

    fn behind(&self, _: &[u32], _: RunWith<'_, EncoderDecoderInput, EncoderDecoderOutput>) -> Result<KeyValueCache> {
        Err(no_prefix().into())
    }
}

fn no_encoder_rows() -> InputError {
    InputError::NoSuchOption { option: "encoder_rows", model: "a model that is not an encoder-decoder" }
}

fn no_prefix() -> InputError {
    InputError::NoSuchOption { option: "prefix", model: "an encoder or encoder-decoder" }
}

/// Fails if an encoder or decoder with `n_ctx` positions and `d_vocab` tokens can't run a row.
fn check_row(row: &[u32], before: usize, (n_ctx, d_vocab): (usize, usize)) -> Result<()> {
    if before > 0 {
        return Err(no_prefix().into());
    }
    if row.len() > n_ctx {
        return Err(InputError::TooLong { len: row.len(), n_ctx }.into());
    }
    Ok(check_ids(&Tokens::new(vec![row.to_vec()])?, d_vocab)?)
}

/// The tokenizer's padding token, if it is in the model's vocabulary, else 0.
fn filler(model: &impl HookedModel, d_vocab: usize) -> u32 {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    if (pad as usize) < d_vocab { pad } else { 0 }
}

/// Returns rows of ids unchanged, whatever their lengths; tokenizes texts.
fn rows(prompts: Input, tokens: impl Fn(Input) -> Result<Tokens>) -> Result<Vec<Vec<u32>>> {
    match prompts {
        Input::Rows(rows) => Ok(rows),
        Input::Text(texts) => {
            texts.into_iter().map(|text| Ok(tokens(text.into())?.real(0))).collect::<Result<Vec<_>>>()
        }
        other => {
            let tokens = tokens(other)?;
            Ok((0..tokens.shape()[0]).map(|row| tokens.real(row)).collect())
        }
    }
}
