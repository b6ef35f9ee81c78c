//! Forward pass of an encoder.

use burn::tensor::{Int, Tensor, TensorData};
use hooklens_hooks::{Activation, ActivationCache, Detach, Halt, Rows, Run, upload};

use super::tokens::EncoderTokens;
use super::weights::{EncoderBlock, OutputHeads};
use super::{EncoderInput, HookedEncoder, RelativePositions};
use crate::config::{NormKind, Positional};
use crate::device::guarded;
use crate::driver::{ForwardOptions, HookedModel, Logits, Plan, RunOutput, execute, private};
use crate::error::{Error, InputError, Result};
use crate::model::{
    Buckets, Disentangled, Identified, LogBuckets, Norm, NormPoints, Pass, Sequence, TokenMixer, at_columns,
    attention_reads, narrowed, position_bias, position_vectors, rows_of, token_vectors,
};
use crate::points::{Outer, Site};
use crate::tokens::{Tokens, decode_generated, mask_token};

/// Output of an encoder run. Outputs of heads that the model lacks are `None`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let output = model.run(vec![vec![2, 5, 9, 3]], ForwardOptions::new())?;
/// assert_eq!(output.hidden.map(|hidden| hidden.dims()), Some([1, 4, model.config().d_model()]));
/// // This model has a masked-token head, a pooler and a next-sentence head.
/// assert_eq!(output.logits.map(|logits| logits.dims()[1]), Some(4));
/// assert_eq!(output.pooled.map(|pooled| pooled.dims()), Some([1, model.config().d_model()]));
/// assert_eq!(output.next_sentence.map(|logits| logits.dims()), Some([1, 2]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncoderOutput {
    /// Last hidden state, normalized, `[batch, pos, d_model]`; `None` if the run ended before it ([`Logits::None`]).
    pub hidden: Option<Tensor<3>>,
    /// Logits of the masked-token head, `[batch, pos, d_vocab]`.
    pub logits: Option<Tensor<3>>,
    /// Output of the pooler at the first position, `[batch, d_model]`.
    pub pooled: Option<Tensor<2>>,
    /// Next-sentence logits: "the second text follows the first" and "it does not", `[batch, 2]`.
    pub next_sentence: Option<Tensor<2>>,
    /// Recorded activations.
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
            cache: self.cache.detached(),
        }
    }
}

impl HookedEncoder {
    /// Computes the normalized last hidden state, `[batch, pos, d_model]`, which TransformerLens calls
    /// `encoder_output`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::PaddingSide;
    /// # use hooklens::encoder::HookedEncoder;
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
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
    /// Same as [`HookedModel::run`].
    pub fn encode(&self, input: impl Into<EncoderInput>) -> Result<Tensor<3>> {
        self.encode_with(input, ForwardOptions::new())
    }

    /// Like [`encode`](HookedEncoder::encode), with run options such as hooks.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let ablated = ForwardOptions::new().hooks([hook::z(0).head(1).zero()]);
    /// let gap = model.encode_with([2, 5, 9, 3], ablated)? - model.encode([2, 5, 9, 3])?;
    /// assert!(gap.abs().max().into_scalar::<f32>() > 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`].
    pub fn encode_with<'h>(
        &self,
        input: impl Into<EncoderInput>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<Tensor<3>> {
        let tokens = self.to_tokens(input)?;
        guarded(|| self.devices(), || self.hidden(&tokens, options.into()))
    }

    /// Last hidden state, normalized, `[batch, pos, d_model]`.
    pub(super) fn hidden(&self, tokens: &EncoderTokens, options: ForwardOptions<'_>) -> Result<Tensor<3>> {
        let hidden = self.run_tokens(tokens, options, OutputHeads::NONE)?.hidden;
        Ok(hidden.ok_or(InputError::NoOutput { what: "last hidden state" })?)
    }

    /// Computes the log-probabilities that the second text follows the first and that it does not, `[batch, 2]`.
    ///
    /// ```
    /// # use hooklens::FromPretrained;
    /// # use hooklens::encoder::{EncoderInput, HookedEncoder};
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// // Token ids of both texts, and their types. To pass texts, use `EncoderInput::pairs`.
    /// let input = EncoderInput::from(vec![vec![2, 5, 3, 9, 3]]).token_types(vec![vec![0, 0, 0, 1, 1]]);
    /// let shares = model.next_sentence(input)?.exp();
    /// assert!((shares.sum().into_scalar::<f32>() - 1.0).abs() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`]; [`InputError::NoHead`] if the model has no next-sentence head.
    pub fn next_sentence(&self, input: impl Into<EncoderInput>) -> Result<Tensor<2>> {
        let tokens = self.to_tokens(input)?;
        let wanted = OutputHeads { nsp: true, ..OutputHeads::NONE };
        let logits = self.run_tokens(&tokens, ForwardOptions::new(), wanted)?.next_sentence;
        let logits = logits.ok_or(InputError::NoHead { head: "next-sentence" })?;
        Ok(burn::tensor::activation::log_softmax(logits, 1))
    }

    /// Predicts the most probable token for each mask token of each text, in order.
    ///
    /// ```no_run
    /// # use hooklens::FromPretrained;
    /// use hooklens::encoder::HookedEncoder;
    /// let model = HookedEncoder::from_pretrained("bert-base-cased")?;
    /// let filled = model.fill_masks(["Paris is the capital of [MASK].", "Two and two is [MASK]."])?;
    /// assert_eq!((filled.len(), filled[0].len()), (2, 1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`]; [`InputError::Setting`] if a text has no mask.
    pub fn fill_masks(&self, input: impl Into<EncoderInput>) -> Result<Vec<Vec<String>>> {
        let tokens = self.to_tokens(input)?;
        let tokenizer = self.tokenizer()?;
        let mask = mask_token(tokenizer).ok_or(InputError::NoSpecialToken { token: "mask" })?;
        let wanted = OutputHeads { mlm: true, ..OutputHeads::NONE };
        let logits = self.run_tokens(&tokens, ForwardOptions::new(), wanted)?.logits;
        let logits = logits.ok_or(InputError::NoHead { head: "masked-token" })?;
        let [batch, _] = tokens.tokens.shape();
        let row = |row: usize| -> Result<Vec<String>> {
            let ids = tokens.tokens.row(row);
            let places: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == mask).collect();
            if places.is_empty() {
                let text = decode_generated(tokenizer, ids, true)?;
                let token = tokenizer.token(mask).unwrap_or_default();
                return Err(InputError::Setting {
                    name: "text",
                    given: text,
                    allowed: format!("a text with a {token}"),
                }
                .into());
            }
            let best = |at: usize| -> Result<String> {
                let here = logits.clone().narrow(0, row, 1).narrow(1, at, 1);
                let here = Activation::from(here).to_ndarray()?;
                if here.iter().any(|logit| logit.is_nan()) {
                    return Err(Error::NotANumber { what: format!("a logit at position {at} of row {row}") });
                }
                let larger = |best: (u32, f32), (id, logit): (usize, &f32)| {
                    if *logit > best.1 { (id as u32, *logit) } else { best }
                };
                let (best, _) = here.iter().enumerate().fold((0, f32::NEG_INFINITY), larger);
                Ok(decode_generated(tokenizer, &[best], false)?)
            };
            places.into_iter().map(best).collect()
        };
        (0..batch).map(row).collect()
    }

    /// Runs the model with these output heads; without logits, only up to the last point that is hooked or recorded.
    pub(super) fn run_tokens(
        &self,
        tokens: &EncoderTokens,
        mut options: ForwardOptions<'_>,
        wanted: OutputHeads,
    ) -> Result<EncoderOutput> {
        options.check_plain("an encoder")?;
        if options.logits == Logits::Last {
            return Err(InputError::NoSuchOption { option: "Logits::Last", model: "an encoder" }.into());
        }
        let [batch, len] = tokens.tokens.shape();
        let sequence = Sequence::of(&tokens.tokens);
        check_length(self, sequence.positions_needed())?;
        let widest = self.stack.d_mlp().max(if wanted.mlm { self.config.d_vocab } else { 0 });
        let plan = Plan {
            points: &self.points,
            device: self.weights.parts.embed.tokens.val().device(),
            dtype: self.weights.parts.embed.tokens.val().dtype(),
            rows: Rows { copies: options.copies, ..sequence.rows() },
            silent: &|_| None,
            model: &|| self.identity(),
            texts: &|| Some(tokens.tokens.text_hashes(None)),
            at_once: batch.saturating_mul(len).saturating_mul(widest),
            shape: &self.stack,
            stop_when_done: options.logits == Logits::None,
        };
        let pass = |run: &mut Run<'_, '_>| self.pass(tokens, &sequence, wanted, run);
        let (passed, cache) = execute(plan, &mut options.hooks, options.record, pass)?;
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
        let weights = &self.weights.parts;
        let table = weights.embed.tokens.val();
        let (device, dtype) = (table.device(), table.dtype());
        let norm = |scale, normalized| NormPoints {
            scale: self.points.outer(scale),
            normalized: self.points.outer(normalized),
        };
        let [batch, len] = tokens.tokens.shape();
        let mut embedded = token_vectors(table, &tokens.tokens, dtype);
        if let Some(mask) = self.config.token_dropout {
            embedded = embedded * narrowed(upload(kept_shares(&tokens.tokens, mask), &device), dtype);
        }
        let mut full = run.fire(self.points.outer(Outer::TokenEmbed), embedded)?;
        if let Some(positions) = &weights.embed.positions {
            let positions = position_vectors(positions.val(), sequence, dtype).expand(full.dims());
            full = full + run.fire(self.points.outer(Outer::PositionEmbed), positions)?;
        }
        if let Some(types) = &weights.embed.token_types {
            let types = rows_of(types.val(), &tokens.types).reshape([batch, len, self.config.embed_width()]);
            full = full + run.fire(self.points.outer(Outer::TokenTypeEmbed), types)?;
        }
        full = weights.embed.norm.forward(full, norm(Outer::EmbedLnScale, Outer::EmbedLnNormalized), run)?;
        if let Some(projection) = &weights.embed.projection {
            full = projection.forward(full);
        }
        let mut hidden = run.fire(self.points.outer(Outer::FullEmbed), full)?;
        let mut pass = Pass::new(&self.stack, self.points.stack(0), sequence, None, &device, dtype);
        let vectors = self.relative(&mut pass);
        for layer in 0..self.config.n_layers {
            let block = &weights.blocks[self.config.block(layer)];
            if let (Some(own), Some(RelativePositions::Buckets { count, max_distance, .. })) =
                (&block.relative_bias, self.config.relative)
            {
                pass.score_bias = Some(bias_of(own.val(), count, max_distance, sequence));
            }
            pass.disentangled = vectors.as_ref().map(|vectors| block.positions(vectors, self.config.relative));
            hidden = match self.config.pre_norms {
                true => block.forward_pre(layer, hidden, &mut pass, run)?,
                false => block.forward(layer, hidden, &mut pass, run)?,
            };
        }
        if let Some(ln_final) = &weights.ln_final {
            hidden = ln_final.forward(hidden, norm(Outer::FinalScale, Outer::FinalNormalized), run)?;
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

/// Factor for each token's embedding under token dropout, `[batch, pos, 1]`: 0 for the mask token, and for the others,
/// a factor that restores the average magnitude in training, where 12% of the tokens were dropped.
fn kept_shares(tokens: &Tokens, mask: u32) -> TensorData {
    const KEPT_IN_TRAINING: f32 = 1.0 - 0.15 * 0.8;
    let [batch, len] = tokens.shape();
    let shares = (0..batch).flat_map(|row| {
        let ids = tokens.row(row);
        let real = |at: usize| tokens.mask().is_none_or(|mask| mask[row * len + at]);
        let count = (0..len).filter(|at| real(*at)).count();
        let dropped = (0..len).filter(|at| real(*at) && ids[*at] == mask).count();
        let kept = 1.0 - dropped as f32 / count.max(1) as f32;
        ids.iter().map(move |id| if *id == mask { 0.0 } else { KEPT_IN_TRAINING / kept })
    });
    TensorData::new(shares.collect::<Vec<f32>>(), [batch, len, 1])
}

/// Relative position embeddings, and the index of the embedding for each query and key.
struct RelativeVectors {
    vectors: Tensor<2>,
    numbers: Tensor<4, Int>,
}

impl HookedEncoder {
    /// Prepares relative positions: sets a score bias shared by all layers, or returns embeddings that each layer
    /// projects itself.
    fn relative(&self, pass: &mut Pass<'_>) -> Option<RelativeVectors> {
        let (weights, kind) = (self.weights.parts.relative.as_ref()?, self.config.relative?);
        let table = weights.table.val();
        match kind {
            RelativePositions::Buckets { count, max_distance, .. } => {
                pass.score_bias = Some(bias_of(table, count, max_distance, pass.sequence));
                None
            }
            RelativePositions::Disentangled { span, max_distance, .. } => {
                let numbers = LogBuckets { span, max_distance }.numbers(pass.sequence, &table);
                let vectors = match &weights.norm {
                    Some(norm) => norm.without_hooks(table),
                    None => table,
                };
                Some(RelativeVectors { vectors, numbers })
            }
        }
    }
}

/// Score bias by distance, in both directions, `[batch or 1, head, query, key]`.
fn bias_of(table: Tensor<2>, count: usize, max_distance: usize, sequence: &Sequence) -> Tensor<4> {
    position_bias(table, sequence, Buckets { count, max_distance, bidirectional: true })
}

/// Vector at each row's first unmasked token, `[batch, d_model]`.
pub(super) fn first_rows(x: Tensor<3>, sequence: &Sequence) -> Tensor<2> {
    if sequence.is_plain() {
        return x.narrow(1, 0, 1).squeeze_dim(1);
    }
    at_columns(x, &sequence.first_columns())
}

type Passed = (Tensor<3>, Option<Tensor<3>>, Option<Tensor<2>>, Option<Tensor<2>>);

impl EncoderBlock {
    /// Projects the relative position embeddings to this block's keys and queries.
    fn positions(&self, relative: &RelativeVectors, kind: Option<RelativePositions>) -> Disentangled {
        let (content, position) = match kind {
            Some(RelativePositions::Disentangled { content_to_position, position_to_content, .. }) => {
                (content_to_position, position_to_content)
            }
            _ => (false, false),
        };
        let keys = self.relative_k.as_ref().unwrap_or(&self.attn.k);
        let queries = self.relative_q.as_ref().unwrap_or(&self.attn.q);
        Disentangled {
            keys: content.then(|| keys.forward(relative.vectors.clone())),
            queries: position.then(|| queries.forward(relative.vectors.clone())),
            numbers: relative.numbers.clone(),
        }
    }

    /// Runs a block with norms before its sublayers; returns the residual stream, `[batch, pos, d_model]`.
    fn forward_pre(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let resid = run.fire(at(Site::ResidPre), resid)?;
        let (reads, _) = attention_reads(&self.ln1, layer, &resid, pass, run)?;
        let attn_out = self.attn.forward(layer, reads, pass, run)?;
        let attn_out = run.fire(at(Site::AttnOut), attn_out)?;
        let mid = run.fire(at(Site::ResidMid), resid + attn_out)?;
        let read = run.fire(at(Site::MlpIn), mid.clone())?;
        let points_of_norm = NormPoints { scale: at(Site::Ln2Scale), normalized: at(Site::Ln2Normalized) };
        let read = self.ln2.forward(read, points_of_norm, run)?;
        let read = run.fire(at(Site::MlpReads), read)?;
        let mlp_out = self.mlp.forward(layer, read, pass, run)?;
        let mlp_out = run.fire(at(Site::MlpWrites), mlp_out)?;
        let mlp_out = run.fire(at(Site::MlpOut), mlp_out)?;
        run.fire(at(Site::ResidPost), mid + mlp_out)
    }

    /// Runs a block with norms after its sublayers; returns the normalized residual stream, `[batch, pos, d_model]`.
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
        // Attention reads the stream itself, which is already normalized.
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

/// Checks the length of a text. Rotary and relative positions have no limit.
///
/// # Errors
/// [`InputError::TooLong`] if the text is longer than the table of learned positions.
pub fn check_length(model: &HookedEncoder, len: usize) -> Result<(), InputError> {
    let n_ctx = model.config.n_ctx;
    match len > n_ctx && model.config.positional == Positional::Learned {
        true => Err(InputError::TooLong { len, n_ctx }),
        false => Ok(()),
    }
}
