//! What a dump needs of a model.

use burn::tensor::Tensor;
use hooklens_hooks::Record;

use crate::driver::{Hooked, HookedModel, Input, Logits, private};
use crate::encoder::{EncoderInput, EncoderOutput, HookedEncoder};
use crate::error::{InputError, Result};
use crate::experiments::SharedPrefix;
use crate::kv_cache::KeyValueCache;
use crate::model::{DecoderModel, HookedTransformer, Output};
use crate::tokens::Tokens;

/// A model whose activations can be dumped: a decoder or an encoder, with parts in it and under hooks that stay.
pub trait DumpModel: HookedModel + private::Sealed {
    /// The hash of configuration and weights.
    #[doc(hidden)]
    fn fingerprint_of_weights(&self) -> Result<String>;

    /// The tokens of prompts, a row each, without padding.
    #[doc(hidden)]
    fn prompts(&self, prompts: Input) -> Result<Vec<Vec<u32>>>;

    /// An error for a prompt that the model can't run behind `before` other positions.
    #[doc(hidden)]
    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()>;

    /// The id that fills rows.
    #[doc(hidden)]
    fn filler(&self) -> u32;

    /// A batch as the model's input.
    #[doc(hidden)]
    fn batch(tokens: Tokens) -> Self::Input;

    /// The logits of a run, `[batch, pos, d_vocab]`.
    #[doc(hidden)]
    fn logits(output: &mut Self::Output) -> Option<Tensor<3>>;

    /// Runs with a shared prefix, if the model can continue from a cache.
    #[doc(hidden)]
    fn sharing(&self, record: Record, logits: Logits) -> Option<SharedPrefix<'_>>;

    /// The frozen cache of a prefix.
    #[doc(hidden)]
    fn behind(&self, prefix: &[u32]) -> Result<KeyValueCache>;
}

impl DumpModel for HookedTransformer {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn prompts(&self, prompts: Input) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| self.token_input(tokens))
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

    fn behind(&self, prefix: &[u32]) -> Result<KeyValueCache> {
        frozen(self, prefix)
    }
}

impl DumpModel for Hooked<'_, '_, HookedTransformer> {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.model().fingerprint_of_weights()
    }

    fn prompts(&self, prompts: Input) -> Result<Vec<Vec<u32>>> {
        self.model().prompts(prompts)
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        self.model().check_prompt(prompt, before)
    }

    fn filler(&self) -> u32 {
        self.model().filler()
    }

    fn batch(tokens: Tokens) -> Input {
        tokens.into()
    }

    fn logits(output: &mut Output) -> Option<Tensor<3>> {
        output.logits.take()
    }

    /// A hook may do something else at each position, so nothing is shared under hooks.
    fn sharing(&self, _: Record, _: Logits) -> Option<SharedPrefix<'_>> {
        None
    }

    fn behind(&self, prefix: &[u32]) -> Result<KeyValueCache> {
        frozen(self, prefix)
    }
}

impl DumpModel for HookedEncoder {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.fingerprint()
    }

    fn prompts(&self, prompts: Input) -> Result<Vec<Vec<u32>>> {
        rows(prompts, |tokens| Ok(self.to_tokens(tokens)?.tokens))
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        if before > 0 {
            return Err(no_prefix().into());
        }
        let n_ctx = self.config().n_ctx;
        if prompt.len() > n_ctx {
            return Err(InputError::TooLong { len: prompt.len(), n_ctx }.into());
        }
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

    fn behind(&self, _: &[u32]) -> Result<KeyValueCache> {
        Err(no_prefix().into())
    }
}

impl DumpModel for Hooked<'_, '_, HookedEncoder> {
    fn fingerprint_of_weights(&self) -> Result<String> {
        self.model().fingerprint_of_weights()
    }

    fn prompts(&self, prompts: Input) -> Result<Vec<Vec<u32>>> {
        self.model().prompts(prompts)
    }

    fn check_prompt(&self, prompt: &[u32], before: usize) -> Result<()> {
        self.model().check_prompt(prompt, before)
    }

    fn filler(&self) -> u32 {
        self.model().filler()
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

    fn behind(&self, _: &[u32]) -> Result<KeyValueCache> {
        Err(no_prefix().into())
    }
}

fn no_prefix() -> InputError {
    InputError::NoSuchOption { option: "prefix", model: "an encoder" }
}

fn frozen(model: &impl DecoderModel, prefix: &[u32]) -> Result<KeyValueCache> {
    let mut cache = model.prefill(vec![prefix.to_vec()])?;
    cache.freeze();
    Ok(cache)
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
