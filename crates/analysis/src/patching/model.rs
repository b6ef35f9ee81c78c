//! What patching requires from each kind of model.

use burn::tensor::Tensor;
use hooklens_hooks::{Axis, PointId, Segment};

use super::{Ablation, Backward, PatchPrompts};
use crate::error::PatchError;
use hooklens_model::config::{Layers, Settings};
use hooklens_model::driver::private::Spliceable;
use hooklens_model::driver::{ForwardOptions, Hooked, HookedModel, Input, Logits, unhooked};
use hooklens_model::encoder::{EncoderInput, EncoderOutput, HookedEncoder};
use hooklens_model::encoder_decoder::{
    EncoderDecoderInput, EncoderDecoderOutput, HookedEncoderDecoder, attends_to_encoder, both_tokens,
};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::{Tokens, mask_token};

/// A model whose activations can be patched: a decoder, an encoder with a masked-token head, an encoder-decoder, or one
/// of these with scoped hooks.
///
/// A [`Metric`](super::Metric) reads the logits after the last token of a decoder, at the masked token of an encoder,
/// and after the last decoder token of an encoder-decoder.
///
/// ```
/// use hooklens::patching::Metric;
/// use hooklens::prelude::*;
///
/// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let (clean, corrupted) = ([5, 6, 7, 1], [5, 9, 7, 1]);
/// let patching = model.patching(clean, corrupted).logit_diff(4, 8)?;
/// let encoder = patching.sweep(&Sites::new("encoder.*.hook_resid_pre").per([Axis::Pos]))?; // [layer, pos]
/// let shares = encoder.normalized()?;
/// // Before the first layer, only the second token differs.
/// assert!((shares.values()[[0, 1]] - 1.0).abs() < 1e-3 && shares.values()[[0, 0]] == 0.0);
/// let crossed = patching.sweep(&Sites::new("decoder.*.cross_attn.hook_z").per([Axis::Head]))?; // [layer, head]
/// assert_eq!(crossed.mean().values().shape(), [2, model.decoder_config().n_heads()]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait PatchModel: Patchable {
    /// Patches activations of the clean prompts into runs on the corrupted prompts. Choose a metric on the returned
    /// value. The numbers of clean and corrupted prompts must be equal, and the two prompts of a pair must have the
    /// same length.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let map = model.patching(clean, corrupted).logit_diff("Mary", "John")?.resid_pre()?.normalized()?;
    /// assert_eq!(map.values().shape(), [4, 15]); // [layer, pos]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn patching(&self, clean: impl Into<Self::Input>, corrupted: impl Into<Self::Input>) -> PatchPrompts<'_, Self> {
        PatchPrompts::pairs(self, clean.into(), corrupted.into())
    }

    /// Ablates activations in runs on these prompts. Choose a metric on the returned value.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let heads = model.ablating(prompt, Ablation::Zero).logit_diff("Mary", "John")?.attn_head_out_all_pos()?;
    /// assert_eq!(heads.effect().values().shape(), [4, 4]); // [layer, head]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn ablating(&self, prompts: impl Into<Self::Input>, ablation: Ablation<Self::Input>) -> PatchPrompts<'_, Self> {
        PatchPrompts::ablated(self, prompts.into(), ablation)
    }
}

impl<M: Patchable> PatchModel for M {}

/// The operations that patching needs and that depend on the kind of model.
pub trait Patchable: HookedModel {
    /// One prompt without padding.
    type Prompt: Clone;

    /// The prompts of an input.
    fn prompts(&self, input: Self::Input) -> Result<Vec<Self::Prompt>>;

    /// A batch of copies of a prompt.
    fn copies(prompt: &Self::Prompt, count: usize) -> Result<Self::Input>;

    /// Number of tokens of each text in a prompt.
    fn lengths(prompt: &Self::Prompt) -> Vec<usize>;

    /// The tokens along a position axis of a point.
    fn tokens_along<'p>(&self, prompt: &'p Self::Prompt, point: PointId, axis: Axis) -> &'p [u32];

    /// Number of logits per position.
    fn d_vocab_out(&self) -> usize;

    /// Options for a run that computes the logits a metric reads.
    fn making<'h>(options: ForwardOptions<'h>, needs: Logits) -> ForwardOptions<'h> {
        options.logits(needs)
    }

    /// The logits a metric reads from a run on `prompt`: `[row, 1, d_vocab]`, or `[row, pos, d_vocab]` if the metric
    /// needs all positions.
    fn read(&self, scored: Self::Scored, prompt: &Self::Prompt, needs: Logits) -> Result<Tensor<3>>;

    /// Fails if the model does not support this backward pass.
    fn check_backward(&self, _backward: Backward) -> Result<()> {
        Err(InputError::NoSuchOption { option: "backward", model: "a model other than a decoder" }.into())
    }

    /// The decoder and the prompt's tokens, if runs can be resumed at any layer and position; otherwise `None`.
    fn restarts<'p>(&'p self, _prompt: &'p Self::Prompt) -> Option<(&'p HookedTransformer, &'p [u32])> {
        None
    }

    /// Runs copies of a prompt with hooks at these points.
    fn run_copies(
        &self,
        prompt: &Self::Prompt,
        count: usize,
        _points: &[PointId],
        options: ForwardOptions<'_>,
    ) -> Result<Self::Output> {
        self.run(Self::copies(prompt, count)?, options)
    }
}

impl Patchable for HookedTransformer {
    type Prompt = Vec<u32>;

    fn prompts(&self, input: Input) -> Result<Vec<Vec<u32>>> {
        rows(&self.token_input(input)?)
    }

    fn copies(prompt: &Vec<u32>, count: usize) -> Result<Input> {
        Ok(Tokens::new(vec![prompt.clone(); count])?.into())
    }

    fn lengths(prompt: &Vec<u32>) -> Vec<usize> {
        vec![prompt.len()]
    }

    fn tokens_along<'p>(&self, prompt: &'p Vec<u32>, _: PointId, _: Axis) -> &'p [u32] {
        prompt
    }

    fn d_vocab_out(&self) -> usize {
        self.config().d_vocab_out()
    }

    fn read(&self, logits: Tensor<3>, _: &Vec<u32>, _: Logits) -> Result<Tensor<3>> {
        Ok(logits)
    }

    fn check_backward(&self, backward: Backward) -> Result<()> {
        backward.check(self)
    }

    fn restarts<'p>(&'p self, prompt: &'p Vec<u32>) -> Option<(&'p HookedTransformer, &'p [u32])> {
        // Layers with inputs besides the preceding residual stream cannot be resumed from the stream alone.
        let config = self.config();
        let more = config.per_layer_inputs().is_some()
            || config.shares_keys()
            || self.points().splices.reach_back(self.catalog());
        (!more).then_some((self, prompt))
    }
}

/// A text's tokens and their token types.
#[derive(Debug, Clone)]
pub struct EncoderPrompt {
    tokens: Vec<u32>,
    types: Vec<u32>,
}

impl Patchable for HookedEncoder {
    type Prompt = EncoderPrompt;

    fn prompts(&self, input: EncoderInput) -> Result<Vec<EncoderPrompt>> {
        let made = self.to_tokens(input)?;
        let [_, len] = made.tokens.shape();
        let real = |row: usize| {
            let columns = row * len..(row + 1) * len;
            let is_real = |place: &usize| made.tokens.mask().is_none_or(|mask| mask[*place]);
            columns.filter(is_real).map(|place| made.types[place]).collect()
        };
        let tokens = rows(&made.tokens)?;
        Ok(tokens.into_iter().enumerate().map(|(row, tokens)| EncoderPrompt { tokens, types: real(row) }).collect())
    }

    fn copies(prompt: &EncoderPrompt, count: usize) -> Result<EncoderInput> {
        let tokens = EncoderInput::from(Tokens::new(vec![prompt.tokens.clone(); count])?);
        Ok(tokens.token_types(vec![prompt.types.clone(); count]))
    }

    fn lengths(prompt: &EncoderPrompt) -> Vec<usize> {
        vec![prompt.tokens.len()]
    }

    fn tokens_along<'p>(&self, prompt: &'p EncoderPrompt, _: PointId, _: Axis) -> &'p [u32] {
        &prompt.tokens
    }

    fn d_vocab_out(&self) -> usize {
        self.config().d_vocab()
    }

    fn making<'h>(options: ForwardOptions<'h>, _: Logits) -> ForwardOptions<'h> {
        options
    }

    fn read(&self, output: EncoderOutput, prompt: &EncoderPrompt, needs: Logits) -> Result<Tensor<3>> {
        let logits = output.logits.ok_or(InputError::NoHead { head: "masked-token" })?;
        if needs == Logits::All {
            return Ok(logits);
        }
        let mask = mask_token(self.tokenizer()?);
        let masked: Vec<usize> = (0..prompt.tokens.len()).filter(|at| Some(prompt.tokens[*at]) == mask).collect();
        match masked[..] {
            [at] => Ok(logits.narrow(1, at, 1)),
            _ => Err(PatchError::Masks { given: masked.len() }.into()),
        }
    }
}

/// Encoder input tokens and decoder tokens.
#[derive(Debug, Clone)]
pub struct EncoderDecoderPrompt {
    encoder: Vec<u32>,
    decoder: Vec<u32>,
}

impl Patchable for HookedEncoderDecoder {
    type Prompt = EncoderDecoderPrompt;

    fn prompts(&self, input: EncoderDecoderInput) -> Result<Vec<EncoderDecoderPrompt>> {
        let (read, written) = both_tokens(self, input)?;
        let pairs = rows(&read)?.into_iter().zip(rows(&written)?);
        Ok(pairs.map(|(encoder, decoder)| EncoderDecoderPrompt { encoder, decoder }).collect())
    }

    fn copies(prompt: &EncoderDecoderPrompt, count: usize) -> Result<EncoderDecoderInput> {
        Ok((vec![prompt.encoder.clone(); count], vec![prompt.decoder.clone(); count]).into())
    }

    fn lengths(prompt: &EncoderDecoderPrompt) -> Vec<usize> {
        vec![prompt.encoder.len(), prompt.decoder.len()]
    }

    fn tokens_along<'p>(&self, prompt: &'p EncoderDecoderPrompt, point: PointId, axis: Axis) -> &'p [u32] {
        let segment = self.catalog().info(point).segment;
        let of_encoder = match segment {
            Segment::Encoder | Segment::CrossKeys => true,
            // Cross-attention patterns have decoder queries and encoder keys.
            _ => axis == Axis::Key && attends_to_encoder(self, point),
        };
        if of_encoder { &prompt.encoder } else { &prompt.decoder }
    }

    fn d_vocab_out(&self) -> usize {
        self.decoder_config().d_vocab()
    }

    fn read(&self, logits: Tensor<3>, _: &EncoderDecoderPrompt, _: Logits) -> Result<Tensor<3>> {
        Ok(logits)
    }

    /// Runs the encoder once for all copies unless it has hooks.
    fn run_copies(
        &self,
        prompt: &EncoderDecoderPrompt,
        count: usize,
        points: &[PointId],
        options: ForwardOptions<'_>,
    ) -> Result<EncoderDecoderOutput> {
        if points.iter().any(|point| self.catalog().info(*point).segment == Segment::Encoder) {
            return self.run(Self::copies(prompt, count)?, options);
        }
        let encoded = self.encode(&prompt.encoder)?.repeat(count);
        self.decode_with(&encoded, vec![prompt.decoder.clone(); count], options)
    }
}

impl<M: Patchable> Patchable for Hooked<'_, '_, M> {
    type Prompt = M::Prompt;

    fn prompts(&self, input: M::Input) -> Result<Vec<M::Prompt>> {
        unhooked(self).prompts(input)
    }

    fn copies(prompt: &M::Prompt, count: usize) -> Result<M::Input> {
        M::copies(prompt, count)
    }

    fn lengths(prompt: &M::Prompt) -> Vec<usize> {
        M::lengths(prompt)
    }

    fn tokens_along<'p>(&self, prompt: &'p M::Prompt, point: PointId, axis: Axis) -> &'p [u32] {
        unhooked(self).tokens_along(prompt, point, axis)
    }

    fn d_vocab_out(&self) -> usize {
        unhooked(self).d_vocab_out()
    }

    fn check_backward(&self, backward: Backward) -> Result<()> {
        unhooked(self).check_backward(backward)
    }

    fn making<'h>(options: ForwardOptions<'h>, needs: Logits) -> ForwardOptions<'h> {
        M::making(options, needs)
    }

    fn read(&self, scored: M::Scored, prompt: &M::Prompt, needs: Logits) -> Result<Tensor<3>> {
        unhooked(self).read(scored, prompt, needs)
    }
}

/// Rows of tokens without padding.
fn rows(tokens: &Tokens) -> Result<Vec<Vec<u32>>> {
    let [batch, _] = tokens.shape();
    let rows: Vec<Vec<u32>> = (0..batch).map(|row| tokens.real(row)).collect();
    match rows.iter().position(Vec::is_empty) {
        Some(row) => Err(InputError::Empty { what: format!("row {row}") }.into()),
        None => Ok(rows),
    }
}
