//! One run of an encoder.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Halt, Run};

use super::tokens::EncoderTokens;
use super::weights::{EncoderBlock, OutputHeads};
use super::{EncoderInput, HookedEncoder};
use crate::config::NormKind;
use crate::device::guarded;
use crate::driver::{ForwardOptions, HookedModel, Logits, Plan, RunOutput, drive, private};
use crate::error::{InputError, Result};
use crate::model::{
    Norm, NormPoints, Pass, Sequence, at_columns, attention_reads, position_vectors, rows_of, token_vectors,
};
use crate::points::{Outer, Site};
use crate::tokens::Tokens;

/// What a run of an encoder gives; heads the model lacks give nothing.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
/// let output = model.run(vec![vec![2, 5, 9, 3]], ForwardOptions::new())?;
/// assert_eq!(output.hidden.map(|hidden| hidden.dims()), Some([1, 4, model.config().d_model]));
/// // A model with these heads: masked tokens, pooler, next sentence.
/// assert_eq!(output.logits.map(|logits| logits.dims()[1]), Some(4));
/// assert_eq!(output.pooled.map(|pooled| pooled.dims()), Some([1, model.config().d_model]));
/// assert_eq!(output.next_sentence.map(|logits| logits.dims()), Some([1, 2]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncoderOutput {
    /// The last normalized stream, `[batch, pos, d_model]`; none if the run ended before it ([`Logits::None`]).
    pub hidden: Option<Tensor<3>>,
    /// Logits of the masked-token head, `[batch, pos, d_vocab]`.
    pub logits: Option<Tensor<3>>,
    /// The pooled first position, `[batch, d_model]`.
    pub pooled: Option<Tensor<2>>,
    /// Logits of "the second text follows the first" and "it does not", `[batch, 2]`.
    pub next_sentence: Option<Tensor<2>>,
    /// What was recorded.
    pub cache: ActivationCache,
}

impl private::Sealed for EncoderOutput {}

impl RunOutput for EncoderOutput {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn main(&self) -> Result<Tensor<3>> {
        Ok(self.logits.clone().ok_or(InputError::NoHead { head: "masked-token" })?)
    }

    fn without_history(self) -> Self {
        Self {
            hidden: self.hidden.map(Tensor::without_autodiff),
            logits: self.logits.map(Tensor::without_autodiff),
            pooled: self.pooled.map(Tensor::without_autodiff),
            next_sentence: self.next_sentence.map(Tensor::without_autodiff),
            cache: self.cache.map(|held| held.detached()),
        }
    }
}

impl HookedEncoder {
    /// The last normalized stream, `[batch, pos, d_model]`: what TransformerLens calls `encoder_output`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::PaddingSide;
    /// # use hooklens::encoder::HookedEncoder;
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// // Padding changes nothing.
    /// let alone = model.encode(vec![vec![2, 5, 3]])?;
    /// let rows = Tokens::padded(&[vec![2, 5, 3], vec![2, 7, 8, 9, 3]], 0, PaddingSide::Right)?;
    /// let padded = model.encode(rows)?;
    /// let gap = padded.slice([0..1, 0..3]) - alone;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`].
    pub fn encode(&self, input: impl Into<EncoderInput>) -> Result<Tensor<3>> {
        self.encode_with(input, ForwardOptions::new())
    }

    /// [`encode`](HookedEncoder::encode) with hooks.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let ablated = ForwardOptions::new().hooks([hook::z(0).head(1).zero()]);
    /// let gap = model.encode_with([2, 5, 9, 3], ablated)? - model.encode([2, 5, 9, 3])?;
    /// assert!(gap.abs().max().into_scalar::<f32>() > 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`].
    pub fn encode_with<'h>(
        &self,
        input: impl Into<EncoderInput>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<Tensor<3>> {
        let tokens = self.to_tokens(input)?;
        guarded(|| self.devices(), || self.hidden(&tokens, options.into()))
    }

    /// The last normalized stream, `[batch, pos, d_model]`.
    pub(super) fn hidden(&self, tokens: &EncoderTokens, options: ForwardOptions<'_>) -> Result<Tensor<3>> {
        let hidden = self.run_tokens(tokens, options, OutputHeads::NONE)?.hidden;
        Ok(hidden.ok_or(InputError::NoOutput { what: "last hidden state" })?)
    }

    /// Log-probabilities that the second text follows the first and that it does not, `[batch, 2]`.
    ///
    /// ```
    /// # use hooklens::encoder::{EncoderInput, HookedEncoder};
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// // Token ids of both texts and the type of each; of texts, `EncoderInput::pairs`.
    /// let input = EncoderInput::from(vec![vec![2, 5, 3, 9, 3]]).token_types(vec![vec![0, 0, 0, 1, 1]]);
    /// let shares = model.next_sentence(input)?.exp();
    /// assert!((shares.sum().into_scalar::<f32>() - 1.0).abs() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; [`InputError::NoHead`] if the model has none.
    pub fn next_sentence(&self, input: impl Into<EncoderInput>) -> Result<Tensor<2>> {
        let tokens = self.to_tokens(input)?;
        let wanted = OutputHeads { nsp: true, ..OutputHeads::NONE };
        let logits = self.run_tokens(&tokens, ForwardOptions::new(), wanted)?.next_sentence;
        let logits = logits.ok_or(InputError::NoHead { head: "next-sentence" })?;
        Ok(burn::tensor::activation::log_softmax(logits, 1))
    }

    /// For each text its masks' most probable tokens, in order.
    ///
    /// ```no_run
    /// use hooklens::encoder::HookedEncoder;
    /// let model = HookedEncoder::from_pretrained("bert-base-cased")?;
    /// let filled = model.fill_masks(["Paris is the capital of [MASK].", "Two and two is [MASK]."])?;
    /// assert_eq!((filled.len(), filled[0].len()), (2, 1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::forward`]; [`InputError::Setting`] if a text has no mask.
    pub fn fill_masks(&self, input: impl Into<EncoderInput>) -> Result<Vec<Vec<String>>> {
        let tokens = self.to_tokens(input)?;
        let tokenizer = self.tokenizer()?;
        let mask = tokenizer.mask().ok_or(InputError::NoSpecialToken { token: "mask" })?;
        let wanted = OutputHeads { mlm: true, ..OutputHeads::NONE };
        let logits = self.run_tokens(&tokens, ForwardOptions::new(), wanted)?.logits;
        let logits = logits.ok_or(InputError::NoHead { head: "masked-token" })?;
        let [batch, _] = tokens.tokens.shape();
        let row = |row: usize| -> Result<Vec<String>> {
            let ids = tokens.tokens.row(row);
            let places: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == mask).collect();
            if places.is_empty() {
                let text = tokenizer.decode_made(ids, true)?;
                let token = tokenizer.token(mask).unwrap_or_default();
                return Err(
                    InputError::Setting { name: "text", given: text, allowed: format!("with a {token}") }.into()
                );
            }
            let best = |at: usize| -> Result<String> {
                let here = logits.clone().narrow(0, row, 1).narrow(1, at, 1);
                let best = Tokens::from_tensor(here.argmax(2).squeeze_dim::<2>(2))?;
                Ok(tokenizer.decode_made(best.row(0), false)?)
            };
            places.into_iter().map(best).collect()
        };
        (0..batch).map(row).collect()
    }

    /// Runs the model for these heads; without logits, up to the last point that is watched.
    pub(super) fn run_tokens(
        &self,
        tokens: &EncoderTokens,
        mut options: ForwardOptions<'_>,
        wanted: OutputHeads,
    ) -> Result<EncoderOutput> {
        options.check_plain("an encoder")?;
        if options.logits == Logits::Last {
            return Err(InputError::NoSuchOption { option: "logits of the last position", model: "an encoder" }.into());
        }
        let [batch, len] = tokens.tokens.shape();
        let sequence = Sequence::of(&tokens.tokens);
        let (needed, n_ctx) = (sequence.positions_needed(), self.config.n_ctx);
        if needed > n_ctx {
            return Err(InputError::TooLong { len: needed, n_ctx }.into());
        }
        let real = sequence.query_mask();
        let widest = self.stack.d_mlp.max(if wanted.mlm { self.config.d_vocab } else { 0 });
        let plan = Plan {
            points: &self.points,
            device: self.weights.embed.tokens.val().device(),
            dtype: self.weights.embed.tokens.val().dtype(),
            rows: sequence.rows(real.as_deref()),
            silent: &|_| None,
            at_once: batch.saturating_mul(len).saturating_mul(widest),
            shape: &self.stack,
            stop_when_done: options.logits == Logits::None,
        };
        let pass = |run: &mut Run<'_, '_>| self.pass(tokens, &sequence, wanted, run);
        let (passed, cache) = drive(plan, &mut options.hooks, options.record, pass)?;
        let (hidden, logits, pooled, next_sentence) = match passed {
            Some((hidden, logits, pooled, next)) => (Some(hidden), logits, pooled, next),
            None => (None, None, None, None),
        };
        Ok(EncoderOutput { hidden, logits, pooled, next_sentence, cache })
    }

    fn pass(
        &self,
        tokens: &EncoderTokens,
        sequence: &Sequence,
        wanted: OutputHeads,
        run: &mut Run<'_, '_>,
    ) -> Result<Passed, Halt> {
        let weights = &self.weights;
        let table = weights.embed.tokens.val();
        let (device, dtype) = (table.device(), table.dtype());
        let norm = |scale, normalized| NormPoints {
            scale: self.points.outer(scale),
            normalized: self.points.outer(normalized),
        };
        let [batch, len] = tokens.tokens.shape();
        let embedded = run.fire(self.points.outer(Outer::TokenEmbed), token_vectors(table, &tokens.tokens, dtype))?;
        let positions = position_vectors(weights.embed.positions.val(), sequence, dtype);
        let positions = positions.expand([batch, len, self.config.d_model]);
        let mut full = embedded + run.fire(self.points.outer(Outer::PositionEmbed), positions)?;
        if let Some(types) = &weights.embed.token_types {
            let types = rows_of(types.val(), &tokens.types).reshape([batch, len, self.config.d_model]);
            full = full + run.fire(self.points.outer(Outer::TokenTypeEmbed), types)?;
        }
        let normalized = weights.embed.norm.forward(full, norm(Outer::EmbedLnScale, Outer::EmbedLnNormalized), run)?;
        let mut hidden = run.fire(self.points.outer(Outer::FullEmbed), normalized)?;
        let mut pass = Pass::new(&self.stack, self.points.stack(0), sequence, None, &device, dtype);
        for (layer, block) in weights.blocks.iter().enumerate() {
            hidden = block.forward(layer, hidden, &mut pass, run)?;
        }

        let watched = |run: &Run<'_, '_>, outer| run.wants(self.points.outer(outer));
        let mlm = wanted.mlm || watched(run, Outer::MlmLnScale) || watched(run, Outer::MlmLnNormalized);
        let mut logits = None;
        if let Some(head) = weights.mlm_head.as_ref().filter(|_| mlm) {
            let features = self.config.head_activation.apply(head.dense.forward(hidden.clone()));
            let features = head.ln.forward(features, norm(Outer::MlmLnScale, Outer::MlmLnNormalized), run)?;
            logits = wanted.mlm.then(|| head.unembed.forward(features));
        }
        let nsp = wanted.nsp || watched(run, Outer::NspOut);
        let pooler = wanted.pooler || nsp || watched(run, Outer::PoolerOut);
        let (mut pooled, mut next_sentence) = (None, None);
        if let Some(pooler) = weights.pooler.as_ref().filter(|_| pooler) {
            let first = first_rows(hidden.clone(), sequence);
            let out = run.fire(self.points.outer(Outer::PoolerOut), pooler.forward(first).tanh())?;
            if let Some(head) = weights.nsp_head.as_ref().filter(|_| nsp) {
                next_sentence = Some(run.fire(self.points.outer(Outer::NspOut), head.forward(out.clone()))?);
            }
            pooled = Some(out);
        }
        Ok((hidden, logits, pooled, next_sentence))
    }
}

/// Each row's first real token, `[batch, d_model]`.
pub(super) fn first_rows(x: Tensor<3>, sequence: &Sequence) -> Tensor<2> {
    if sequence.is_plain() {
        return x.narrow(1, 0, 1).squeeze_dim(1);
    }
    at_columns(x, &sequence.first_columns())
}

type Passed = (Tensor<3>, Option<Tensor<3>>, Option<Tensor<2>>, Option<Tensor<2>>);

impl EncoderBlock {
    /// The normalized stream after the block, `[batch, pos, d_model]`.
    fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let resid = run.fire(at(Site::ResidPre), resid)?;
        // Attention reads the stream itself: what there is to normalize is so already.
        let no_norm = Norm::new(NormKind::None, 0.0, None, None);
        let (reads, _) = attention_reads(&no_norm, layer, &resid, pass, run)?;
        let attn_out = self.attn.forward(layer, reads, pass, run)?;
        let attn_out = run.fire(at(Site::AttnOut), attn_out)?;
        let mid = run.fire(at(Site::ResidMid), resid + attn_out)?;
        let mid = run.fire(at(Site::MlpIn), mid)?;
        let mid = self.ln1.forward(mid, norm(Site::Ln1Scale, Site::Ln1Normalized), run)?;
        let read = run.fire(at(Site::MlpReads), mid.clone())?;
        let mlp_out = self.mlp.forward(layer, read, pass, run)?;
        let mlp_out = run.fire(at(Site::MlpWrites), mlp_out)?;
        let mlp_out = run.fire(at(Site::MlpOut), mlp_out)?;
        let post = run.fire(at(Site::ResidPost), mid + mlp_out)?;
        let post = self.ln2.forward(post, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
        run.fire(at(Site::NormalizedResidPost), post)
    }
}
