//! What a dump needs of a model.

use burn::tensor::Tensor;
use hooklens_hooks::{PointId, Record, Segment};
use serde_json::{Map, Value};

use crate::error::DumpError;
use hooklens_analysis::experiments::SharedPrefix;
use hooklens_model::driver::{ForwardOptions, Hooked, HookedModel, Input, Logits, private};
use hooklens_model::encoder::{EncoderInput, EncoderOutput, HookedEncoder};
use hooklens_model::encoder_decoder::{EncoderDecoderInput, EncoderDecoderOutput, HookedEncoderDecoder};
use hooklens_model::error::{InputError, Result};
use hooklens_model::kv_cache::KeyValueCache;
use hooklens_model::model::{HookedTransformer, Output};
use hooklens_model::tokens::Tokens;

/// A run of a model or of a view of it.
pub(super) type RunWith<'r, I, O> = &'r dyn Fn(I, ForwardOptions<'_>) -> Result<O>;

/// A model whose activations can be dumped: a decoder, an encoder, or the encoder in front of a decoder, with parts in
/// it and under hooks that stay.
pub trait DumpModel: HookedModel + private::Sealed {
    /// Whether its logits are those of the prompts.
    #[doc(hidden)]
    const LOGITS: bool = true;

    /// The hash of configuration and weights.
    #[doc(hidden)]
    fn fingerprint_of_weights(&self) -> Result<String>;

    /// A hash of configuration and weights that takes no long time, where they have one.
    #[doc(hidden)]
    fn identity_of_weights(&self) -> Option<String>;

    /// The parts put into it, each with its place and the hash of its own weights, where it gives one.
    #[doc(hidden)]
    fn parts(&self) -> Result<Vec<String>>;

    /// What it was loaded by.
    #[doc(hidden)]
    fn name(&self) -> &str;

    /// The processing of its weights, by TransformerLens's names.
    #[doc(hidden)]
    fn processing_options(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Its beginning-of-sequence token.
    #[doc(hidden)]
    fn beginning(&self) -> Option<u32> {
        None
    }

    /// The tokens of prompts that come after `before` others, a row each, without padding.
    #[doc(hidden)]
    fn prompts(&self, prompts: Input, before: usize) -> Result<Vec<Vec<u32>>>;

    /// An error for a prompt that the model can't run behind `before` other positions.
    #[doc(hidden)]
    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()>;

    /// An error for tokens that the decoder of an encoder-decoder can't have written behind `before` others.
    #[doc(hidden)]
    fn check_written(&self, _row: &[u32], _before: usize) -> Result<()> {
        Err(no_encoder_rows().into())
    }

    /// An error for a point whose positions are not those of the prompts: of what the encoder reads, or of what the decoder
    /// has `written`.
    #[doc(hidden)]
    fn check_point(&self, _point: PointId, _written: bool) -> Result<()> {
        Ok(())
    }

    /// The id that fills rows.
    #[doc(hidden)]
    fn filler(&self) -> u32;

    /// A batch as the model's input.
    #[doc(hidden)]
    fn batch(tokens: Tokens) -> Self::Input;

    /// A batch of what the decoder has written, with what the encoder reads.
    #[doc(hidden)]
    fn batch_written(&self, _read: Tokens, _written: Tokens) -> Result<Self::Input> {
        Err(no_encoder_rows().into())
    }

    /// The logits of a run, `[batch, pos, d_vocab]`.
    #[doc(hidden)]
    fn logits(output: &mut Self::Output) -> Option<Tensor<3>>;

    /// Runs with a shared prefix, if the model can continue from a cache.
    #[doc(hidden)]
    fn sharing(&self, record: Record, logits: Logits) -> Option<SharedPrefix<'_>>;

    /// The frozen cache of a prefix that `run` ran on: the model itself, or under hooks.
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
        Ok(self.points.fingerprinted_parts()?)
    }

    fn name(&self) -> &str {
        &self.load_report().name
    }

    fn processing_options(&self) -> Map<String, Value> {
        HookedTransformer::processing_options(self)
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
        filler(self, self.config().d_vocab)
    }

    fn batch(tokens: Tokens) -> Input {
        tokens.into()
    }

    fn logits(output: &mut Output) -> Option<Tensor<3>> {
        output.logits.take()
    }

    fn sharing(&self, record: Record, logits: Logits) -> Option<SharedPrefix<'_>> {
        (!self.config().bidirectional).then(|| SharedPrefix::new(self, record, logits))
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
        Ok(self.points.fingerprinted_parts()?)
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
        self.check_length(prompt.len())?;
        Ok(Tokens::new(vec![prompt.to_vec()])?.check(self.config().d_vocab)?)
    }

    fn filler(&self) -> u32 {
        filler(self, self.config().d_vocab)
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
        self.model().fingerprint_of_weights()
    }

    fn identity_of_weights(&self) -> Option<String> {
        self.model().identity_of_weights()
    }

    fn parts(&self) -> Result<Vec<String>> {
        self.model().parts()
    }

    fn name(&self) -> &str {
        self.model().name()
    }

    fn processing_options(&self) -> Map<String, Value> {
        self.model().processing_options()
    }

    fn beginning(&self) -> Option<u32> {
        self.model().beginning()
    }

    fn prompts(&self, prompts: Input, before: usize) -> Result<Vec<Vec<u32>>> {
        self.model().prompts(prompts, before)
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        self.model().check_prompt(prompt, before)
    }

    fn check_written(&self, row: &[u32], before: usize) -> Result<()> {
        self.model().check_written(row, before)
    }

    fn check_point(&self, point: PointId, written: bool) -> Result<()> {
        self.model().check_point(point, written)
    }

    fn filler(&self) -> u32 {
        self.model().filler()
    }

    fn batch(tokens: Tokens) -> M::Input {
        M::batch(tokens)
    }

    fn batch_written(&self, read: Tokens, written: Tokens) -> Result<M::Input> {
        self.model().batch_written(read, written)
    }

    fn logits(output: &mut M::Output) -> Option<Tensor<3>> {
        M::logits(output)
    }

    /// A hook may do something else at each position, so nothing is shared under hooks.
    fn sharing(&self, _: Record, _: Logits) -> Option<SharedPrefix<'_>> {
        None
    }

    fn behind(&self, prefix: &[u32], run: RunWith<'_, M::Input, M::Output>) -> Result<KeyValueCache> {
        self.model().behind(prefix, run)
    }
}

/// What the encoder makes of prompts, or the decoder of what it has written.
impl DumpModel for HookedEncoderDecoder {
    const LOGITS: bool = false;

    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn identity_of_weights(&self) -> Option<String> {
        self.identity().content().map(str::to_string)
    }

    fn parts(&self) -> Result<Vec<String>> {
        Ok(self.points.fingerprinted_parts()?)
    }

    fn name(&self) -> &str {
        &self.load_report().name
    }

    fn prompts(&self, prompts: Input, _: usize) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| Ok(self.both_tokens(tokens.into())?.0))
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        check_row(prompt, before, (self.config().positions.n_ctx(), self.config().d_vocab))
    }

    fn check_written(&self, row: &[u32], before: usize) -> Result<()> {
        check_row(row, before, (self.config().positions.n_ctx(), self.config().d_decoder_vocab))
    }

    fn check_point(&self, id: PointId, written: bool) -> Result<()> {
        let point = self.catalog().info(id);
        let name = || point.name.to_string();
        match (point.segment, written) {
            (Segment::Encoder, false) => Ok(()),
            (_, false) => Err(DumpError::OfDecoder { point: name() }.into()),
            (Segment::Encoder | Segment::CrossKeys, true) => Err(DumpError::OfEncoder { point: name() }.into()),
            (_, true) if self.attends_to_encoder(id) => Err(DumpError::OfEncoder { point: name() }.into()),
            (_, true) => Ok(()),
        }
    }

    fn filler(&self) -> u32 {
        filler(self, self.config().d_vocab.min(self.config().d_decoder_vocab))
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
    InputError::NoSuchOption { option: "encoder_rows", model: "a model without a decoder behind an encoder" }
}

fn no_prefix() -> InputError {
    InputError::NoSuchOption { option: "prefix", model: "an encoder" }
}

/// An error for a row that an encoder or a decoder with these many positions and tokens can't run.
fn check_row(row: &[u32], before: usize, (n_ctx, d_vocab): (usize, usize)) -> Result<()> {
    if before > 0 {
        return Err(no_prefix().into());
    }
    if row.len() > n_ctx {
        return Err(InputError::TooLong { len: row.len(), n_ctx }.into());
    }
    Ok(Tokens::new(vec![row.to_vec()])?.check(d_vocab)?)
}

/// The tokenizer's padding token, if the model knows it.
fn filler(model: &impl HookedModel, d_vocab: usize) -> u32 {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    if (pad as usize) < d_vocab { pad } else { 0 }
}

/// Rows of ids as they are, whatever their lengths; texts by the model's tokenizer.
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
