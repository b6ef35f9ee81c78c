//! Forward pass: runs the encoder on the input tokens, then the decoder on the decoder's tokens.

use std::sync::Arc;

use burn::module::Param;
use burn::tensor::{Bool, Tensor, TensorData};
use hooklens_hooks::{ActivationCache, Detach, Halt, ModelIdentity, PointInfo, Rows, Run, Segment, Silent, TextHashes};

use super::block::CrossInputs;
use super::cache::{CrossKeys, DecoderCache};
use super::decode_from::DecodeFrom;
use super::input::EncoderDecoderInput;
use super::points::{CROSS, DECODER, ENCODER};
use super::positions::StackPositions;
use super::{HookedEncoderDecoder, both_tokens};
use crate::device::guarded;
use crate::driver::{ForwardOptions, HookedModel, Input, Logits, Plan, RunOutput, execute, logits_of, private};
use crate::error::{CacheError, InputError, Result};
use crate::kv_cache::{KeyValueCache, MadeBy, Transaction, select_rows};
use crate::model::{
    Buckets, Identified, NormPoints, Pass, Sequence, last_rows, position_bias, position_vectors, soft_capped,
    token_vectors,
};
use crate::points::Outer;
use crate::tokens::Tokens;

/// Output of an encoder-decoder run.
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let output = model.run(([5, 6, 7, 1], [0, 4]), Record::new("*cross_attn.hook_pattern"))?;
/// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 2, model.decoder_config().d_vocab()]));
/// let pattern: Tensor<4> = output.cache.get("decoder.0.cross_attn.hook_pattern")?;
/// assert_eq!(pattern.dims()[2..], [2, 4]); // [decoder_pos, encoder_pos]
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct EncoderDecoderOutput {
    /// Logits, `[batch, decoder_pos, d_vocab]`, or `[batch, 1, d_vocab]` for [`Logits::Last`]; `None` for
    /// [`Logits::None`].
    pub logits: Option<Tensor<3>>,
    /// Recorded activations.
    pub cache: ActivationCache,
}

impl private::Sealed for EncoderDecoderOutput {}

impl RunOutput for EncoderDecoderOutput {
    fn cache(&mut self) -> &mut ActivationCache {
        &mut self.cache
    }

    fn main(&self) -> Result<Tensor<3>> {
        logits_of(&self.logits)
    }

    fn without_history(self) -> Self {
        Self { logits: self.logits.map(Tensor::without_autodiff), cache: self.cache.detached() }
    }
}

/// Encoder output for a batch, which the decoder attends to.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let mut encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
/// assert_eq!(encoded.hidden.dims(), [1, 4, model.encoder_config().d_model()]);
/// let before = model.decode(&encoded, vec![vec![0, 4]])?.logits;
/// encoded.hidden = encoded.hidden.zeros_like(); // hides the input from the decoder
/// let after = model.decode(&encoded, vec![vec![0, 4]])?.logits;
/// let gap = before.zip(after).map(|(a, b)| (a - b).abs().max().into_scalar::<f32>());
/// assert!(gap.is_some_and(|gap| gap > 0.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Encoded {
    /// Normalized last hidden state of the encoder, `[batch, pos, d_model]`. This is all that the decoder sees of the
    /// input.
    pub hidden: Tensor<3>,
    pub(super) mask: Option<Vec<bool>>,
    /// Identity of the model whose encoder computed this output.
    pub(super) model: Option<Arc<ModelIdentity>>,
}

impl Encoded {
    /// Batch size and number of positions.
    pub(crate) fn shape(&self) -> [usize; 2] {
        let [batch, len, _] = self.hidden.dims();
        [batch, len]
    }

    /// Repeats each row `times` times consecutively, to decode several texts from one input.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
    /// // Two texts decoded from one input.
    /// let logits = model.decode(&encoded.repeat(2), vec![vec![0, 4], vec![0, 9]])?.logits;
    /// assert_eq!(logits.map(|logits| logits.dims()[..2].to_vec()), Some(vec![2, 2]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn repeat(&self, times: usize) -> Self {
        let rows = (0..self.shape()[0]).flat_map(|row| std::iter::repeat_n(row, times));
        self.selected(&rows.collect::<Vec<_>>())
    }

    /// These rows, in this order.
    pub(super) fn selected(&self, rows: &[usize]) -> Self {
        let [_, len] = self.shape();
        let mask = |mask: &Vec<bool>| rows.iter().flat_map(|row| mask[row * len..][..len].to_vec()).collect();
        Self {
            hidden: select_rows(self.hidden.clone(), rows),
            mask: self.mask.as_ref().map(mask),
            model: self.model.clone(),
        }
    }

    /// Padding mask, `[batch, 1, 1, pos]`, `true` at padding; `None` if there is no padding.
    fn hidden_keys(&self) -> Option<Tensor<4, Bool>> {
        let [batch, len] = self.shape();
        let padding: Vec<bool> = self.mask.as_ref()?.iter().map(|real| !real).collect();
        Some(Tensor::from_data(TensorData::new(padding, [batch, 1, 1, len]), &self.hidden.device()))
    }
}

impl HookedEncoderDecoder {
    pub(super) fn run_both(
        &self,
        input: EncoderDecoderInput,
        mut options: ForwardOptions<'_>,
    ) -> Result<EncoderDecoderOutput> {
        options.check_plain("an encoder-decoder")?;
        let (tokens, written) = both_tokens(self, input)?;
        let (encoder, decoder) = (Sequence::of(&tokens), Sequence::of(&written));
        self.check_positions(&encoder)?;
        self.check_positions(&decoder)?;
        let copies = options.copies;
        let rows = Rows { copies, ..decoder.rows() };
        let silent = |_: &PointInfo| None;
        let model = || self.identity();
        let both = || Some(both_hashes(&tokens.text_hashes(None), &written.text_hashes(None)));
        let mut plan = self.plan(&decoder, rows, options.logits, &silent, (&model, &both));
        plan.at_once = plan.at_once.max(self.plan(&encoder, rows, Logits::None, &silent, (&model, &both)).at_once);
        let logits = options.logits;
        let (made, cache) = execute(plan, &mut options.hooks, options.record, |run| {
            run.over(Rows { copies, ..encoder.rows() }, true)?;
            let encoded = self.encoder_pass(&tokens, &encoder, run)?;
            run.over(rows, false)?;
            let alone = PastKeys { own: None, known: &[] };
            self.decoder_pass(&encoded, alone, (&written, &decoder), logits, run)
        })?;
        Ok(EncoderDecoderOutput { logits: made.and_then(|(logits, _)| logits), cache })
    }

    /// Runs only the encoder.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let record = Record::new("encoder.0.attn.hook_pattern");
    /// let (encoded, recorded) = model.encode_with(vec![vec![5, 6, 7, 1]], record)?;
    /// assert_eq!((&encoded.hidden.dims()[..2], recorded.len()), (&[1, 4][..], 1));
    /// assert!(model.encode_with(vec![vec![5]], Record::new("decoder.0.hook_resid_pre")).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`]; also fails for hook points of the decoder.
    pub fn encode(&self, input: impl Into<Input>) -> Result<Encoded> {
        Ok(self.encode_with(input, ForwardOptions::new())?.0)
    }

    /// Like [`encode`](HookedEncoderDecoder::encode), with hooks and recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let record = Record::new("encoder.0.attn.hook_pattern");
    /// let (encoded, recorded) = model.encode_with([5, 6, 7, 1], record)?;
    /// assert_eq!((&encoded.hidden.dims()[..2], recorded.len()), (&[1, 4][..], 1));
    /// assert!(model.encode_with([5], Record::new("decoder.0.hook_resid_pre")).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`]; also fails for hook points of the decoder.
    pub fn encode_with<'h>(
        &self,
        input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<(Encoded, ActivationCache)> {
        guarded(|| self.devices(), || self.run_encoder(input.into(), options.into()))
    }

    fn run_encoder(&self, input: Input, mut options: ForwardOptions<'_>) -> Result<(Encoded, ActivationCache)> {
        options.check_plain("an encoder")?;
        let tokens = self.token_input(input)?;
        let sequence = Sequence::of(&tokens);
        self.check_positions(&sequence)?;
        let (model, texts) = (|| self.identity(), || Some(tokens.text_hashes(None)));
        let silent = |point: &PointInfo| (point.segment != Segment::Encoder).then_some("only the encoder runs");
        let plan = self.plan(&sequence, sequence.rows(), Logits::None, &silent, (&model, &texts));
        let pass = |run: &mut Run<'_, '_>| self.encoder_pass(&tokens, &sequence, run);
        let plan = Plan { stop_when_done: false, ..plan };
        let (encoded, cache) = execute(plan, &mut options.hooks, options.record, pass)?;
        let encoded = encoded.ok_or(InputError::NoOutput { what: "encoding" })?;
        Ok((Encoded { model: Some(self.identity()), ..encoded }, cache))
    }

    /// Runs only the decoder, on an encoder's output or on a [`DecoderCache`]. With a cache, the input contains
    /// only the tokens after the cached ones, and the run appends them to the cache unless it is frozen. If the cache
    /// already holds tokens, text is tokenized without special tokens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
    /// let whole = model.decode(&encoded, vec![vec![0, 4, 9]])?.logits;
    /// let at_once = model.forward(([5, 6, 7, 1], [0, 4, 9]))?;
    /// assert!(whole.as_ref().is_some_and(|own| (own.clone() - at_once).abs().max().into_scalar::<f32>() < 1e-4));
    ///
    /// let mut cache = model.decoder_cache(encoded);
    /// model.decode(&mut cache, vec![vec![0, 4]])?;
    /// let last = model.decode(&mut cache, vec![vec![9]])?.logits; // only the new token
    /// let gap = whole.zip(last).map(|(a, b)| (a.narrow(1, 2, 1) - b).abs().max().into_scalar::<f32>());
    /// assert!(gap.is_some_and(|gap| gap < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`]; also fails for hook points of the encoder, and if a cache belongs to a different
    /// model or has a different batch size.
    pub fn decode<'d>(
        &self,
        from: impl Into<DecodeFrom<'d>>,
        decoder_input: impl Into<Input>,
    ) -> Result<EncoderDecoderOutput> {
        self.decode_with(from, decoder_input, ForwardOptions::new())
    }

    /// Like [`decode`](HookedEncoderDecoder::decode), with hooks and recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let encoded = model.encode([5, 6, 7, 1])?;
    /// let record = Record::new("decoder.*.cross_attn.hook_pattern");
    /// let pattern = model.decode_with(&encoded, [0, 4], record)?.cache.get(hook::cross_pattern(0))?;
    /// assert_eq!(pattern.dims()[2..], [2, 4]); // [decoder_pos, encoder_pos]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`decode`](HookedEncoderDecoder::decode).
    pub fn decode_with<'d, 'h>(
        &self,
        from: impl Into<DecodeFrom<'d>>,
        decoder_input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        let (from, written, options) = (from.into(), decoder_input.into(), options.into());
        guarded(
            || self.devices(),
            || match from {
                DecodeFrom::Encoded(encoded) => self.run_decoder(encoded, None, written, options),
                DecodeFrom::Cache(cache) => {
                    let encoded = cache.encoded.clone();
                    self.run_decoder(&encoded, Some(cache), written, options)
                }
            },
        )
    }

    fn run_decoder(
        &self,
        encoded: &Encoded,
        cache: Option<&mut DecoderCache>,
        written: Input,
        mut options: ForwardOptions<'_>,
    ) -> Result<EncoderDecoderOutput> {
        options.check_plain("the decoder of an encoder-decoder")?;
        let held = cache.as_ref().map_or(Vec::new(), |cache| cache.own.lengths());
        let written = self.written_input_after(written, &held)?;
        let shape @ [batch, _] = written.shape();
        let identity = self.identity();
        if let Some(encoder) = encoded.model.as_ref().filter(|own| !own.is(&identity)) {
            let (cache, model) = (encoder.label().to_string(), identity.label().to_string());
            return Err(CacheError::OtherWeights { cache, model }.into());
        }
        if let Some(cache) = &cache {
            cache.own.check_model(&identity)?;
            cache.own.check(&self.decoder_stack, shape, self.weights.parts.embed.val().dtype(), |_| self.device())?;
        }
        if encoded.shape()[0] != batch {
            return Err(InputError::Rows { encoder: encoded.shape()[0], decoder: batch }.into());
        }
        let sequence = match &cache {
            Some(cache) => Sequence::behind(&cache.own, shape, written.mask()),
            None => Sequence::of(&written),
        };
        self.check_positions(&sequence)?;
        let held = cache.as_ref().is_some_and(|cache| !cache.cross.is_empty());
        let silent = |point: &PointInfo| match point.segment {
            Segment::Encoder => Some("the encoder has run already; hook or record it in `encode_with`"),
            Segment::CrossKeys if held => Some("the cache holds the encoder's keys and values"),
            _ => None,
        };
        // There are no text hashes: only the length of the encoder's text is known here.
        let (model, texts) = (|| identity.clone(), || None);
        let rows = Rows { open: cache.is_some(), copies: options.copies, ..sequence.rows() };
        let plan = self.plan(&sequence, rows, options.logits, &silent, (&model, &texts));
        let plan = Plan { stop_when_done: plan.stop_when_done && cache.is_none(), ..plan };
        let (mut own, cross) = match cache {
            Some(DecoderCache { own, cross, .. }) => (Some(own.begin()), Some(cross)),
            None => (None, None),
        };
        let copies = options.copies;
        let [read_rows, read_len] = encoded.shape();
        let read = Sequence::new(read_rows, 0, read_len, encoded.mask.clone());
        let known = cross.as_deref().map_or(&[][..], Vec::as_slice);
        let logits = options.logits;
        let (made, recorded) = execute(plan, &mut options.hooks, options.record, |run| {
            run.reads_from(Rows { copies, ..read.rows() });
            let behind = PastKeys { own: own.as_mut().map(Transaction::cache), known };
            self.decoder_pass(encoded, behind, (&written, &sequence), logits, run)
        })?;
        let (logits, keys) = made.unwrap_or_default();
        if let Some(own) = own {
            let keeps = own.keeps();
            let made =
                MadeBy { model: identity, hooks: &options.hooks, parts: self.points.named_parts(), by_length: false };
            own.commit(shape, written.mask(), Some(&written), made)?;
            // Keep the encoder's keys and values only if the run that computed them succeeded.
            if let Some(cross) = cross.filter(|cross| keeps && cross.is_empty()) {
                *cross = keys;
            }
        }
        Ok(EncoderDecoderOutput { logits, cache: recorded })
    }

    /// Plan of a run over one stack's positions.
    fn plan<'p>(
        &'p self,
        over: &Sequence,
        rows: Rows<'p>,
        logits: Logits,
        silent: Silent<'p>,
        (model, texts): Sources<'p>,
    ) -> Plan<'p> {
        let tokens = over.batch.saturating_mul(over.len);
        let wide = match logits {
            Logits::All => tokens.saturating_mul(self.config.d_decoder_vocab),
            Logits::Last => over.batch.saturating_mul(self.config.d_decoder_vocab),
            Logits::None => 0,
        };
        let [shape, smaller] = [&self.encoder_stack, &self.decoder_stack];
        let shape = if shape.d_mlp() > smaller.d_mlp() { shape } else { smaller };
        Plan {
            points: &self.points,
            device: self.weights.parts.embed.val().device(),
            dtype: self.weights.parts.embed.val().dtype(),
            rows,
            silent,
            model,
            texts,
            at_once: wide.max(tokens.saturating_mul(shape.d_mlp())),
            shape,
            stop_when_done: logits == Logits::None,
        }
    }

    fn encoder_pass(&self, tokens: &Tokens, sequence: &Sequence, run: &mut Run<'_, '_>) -> Result<Encoded, Halt> {
        let (weights, config) = (&self.weights.parts, &self.config);
        let table = weights.embed.val();
        let (device, dtype) = (table.device(), table.dtype());
        let embedded = run.fire(
            self.points.outer(Outer::EncoderEmbed),
            scaled(token_vectors(table, tokens, dtype), config.embed_scale),
        )?;
        let vectors = weights.encoder_positions.as_ref();
        let mut resid = self.with_positions(embedded, vectors, Outer::EncoderPosEmbed, sequence, run)?;
        if let Some(norm) = &weights.encoder_embed_ln {
            let points = self.norm_points(Outer::EncoderEmbedLnScale, Outer::EncoderEmbedLnNormalized);
            resid = norm.forward(resid, points, run)?;
        }
        let mut pass = Pass::new(&self.encoder_stack, self.points.stack(ENCODER), sequence, None, &device, dtype);
        for (layer, block) in weights.encoder.iter().enumerate() {
            self.set_bias(&mut pass, &weights.encoder_bias, layer, true);
            resid = block.forward(layer, resid, config.norm_after, &mut pass, run)?;
        }
        let points = self.norm_points(Outer::EncoderFinalScale, Outer::EncoderFinalNormalized);
        let hidden = weights.encoder_ln.forward(resid, points, run)?;
        Ok(Encoded { hidden, mask: sequence.query_mask(), model: None })
    }

    fn decoder_pass(
        &self,
        encoded: &Encoded,
        behind: PastKeys<'_>,
        (written, sequence): (&Tokens, &Sequence),
        logits: Logits,
        run: &mut Run<'_, '_>,
    ) -> Result<(Option<Tensor<3>>, CrossKeys), Halt> {
        let (weights, config) = (&self.weights.parts, &self.config);
        let table = weights.decoder_embed.as_ref().unwrap_or(&weights.embed).val();
        let (device, dtype) = (table.device(), table.dtype());
        // Token embeddings are not scaled if the embedding norm applies only to them.
        let mut resid = match config.decoder_tokens_normed {
            true => token_vectors(table, written, dtype),
            false => scaled(token_vectors(table, written, dtype), config.decoder_embed_scale),
        };
        let vectors = weights.decoder_positions.as_ref();
        let points = self.norm_points(Outer::DecoderEmbedLnScale, Outer::DecoderEmbedLnNormalized);
        let norm = weights.decoder_embed_ln.as_ref();
        if let Some(norm) = norm.filter(|_| config.decoder_tokens_normed) {
            resid = norm.forward(resid, points, run)?;
        }
        resid = self.with_positions(resid, vectors, Outer::DecoderPosEmbed, sequence, run)?;
        if let Some(norm) = norm.filter(|_| !config.decoder_tokens_normed) {
            resid = norm.forward(resid, points, run)?;
        }
        let PastKeys { own, known } = behind;
        let mut made = Vec::new();
        let mut pass = Pass::new(&self.decoder_stack, self.points.stack(DECODER), sequence, own, &device, dtype);
        let mut cross = Pass::new(&self.decoder_stack, self.points.stack(CROSS), sequence, None, &device, dtype);
        let hidden_keys = encoded.hidden_keys();
        for (layer, block) in weights.decoder.iter().enumerate() {
            self.set_bias(&mut pass, &weights.decoder_bias, layer, false);
            let across = CrossInputs { pass: &mut cross, encoded, hidden_keys: &hidden_keys, known: known.get(layer) };
            let keys;
            (resid, keys) = block.forward(layer, resid, config.norm_after, &mut pass, across, run)?;
            made.push(keys);
        }
        let points = self.norm_points(Outer::DecoderFinalScale, Outer::DecoderFinalNormalized);
        let mut last = weights.decoder_ln.forward(resid, points, run)?;
        if logits == Logits::None {
            return Ok((None, made));
        }
        if logits == Logits::Last {
            last = last_rows(last, sequence);
        }
        Ok((Some(self.logits(last)), made))
    }

    /// Computes logits, `[batch, pos, d_decoder_vocab]`, from the decoder's normalized last hidden state.
    pub(crate) fn logits(&self, last: Tensor<3>) -> Tensor<3> {
        let logits = self.weights.parts.unembed.forward(scaled(last, self.config.output_scale));
        soft_capped(logits, self.config.output_logits_soft_cap)
    }

    /// Adds position embeddings to the stream, if the model has any.
    fn with_positions(
        &self,
        stream: Tensor<3>,
        table: Option<&Param<Tensor<2>>>,
        point: Outer,
        sequence: &Sequence,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let Some(table) = table else { return Ok(stream) };
        let vectors = position_vectors(table.val(), sequence, stream.dtype()).expand(stream.dims());
        Ok(stream + run.fire(self.points.outer(point), vectors)?)
    }

    /// Sets the score bias of the pass to the bias of layer `layer`.
    fn set_bias(&self, pass: &mut Pass<'_>, tables: &[Param<Tensor<2>>], layer: usize, bidirectional: bool) {
        let StackPositions::Distances { buckets: count, max_distance, .. } = self.config.positions else { return };
        // Layers without a table of their own reuse the first layer's.
        if let Some(table) = tables.get(layer) {
            let buckets = Buckets { count, max_distance, bidirectional };
            pass.score_bias = Some(position_bias(table.val(), pass.sequence, buckets));
        }
    }

    fn norm_points(&self, scale: Outer, normalized: Outer) -> NormPoints {
        NormPoints { scale: self.points.outer(scale), normalized: self.points.outer(normalized) }
    }

    /// Fails if the sequence has more positions than the position table.
    fn check_positions(&self, sequence: &Sequence) -> Result<()> {
        let (len, n_ctx) = (sequence.positions_needed(), self.config.positions.n_ctx());
        if len > n_ctx { Err(InputError::TooLong { len, n_ctx }.into()) } else { Ok(()) }
    }
}

fn scaled(x: Tensor<3>, by: Option<f64>) -> Tensor<3> {
    match by {
        Some(by) => x * by,
        None => x,
    }
}

/// Keys and values of earlier runs of the decoder.
struct PastKeys<'c> {
    /// Cache of the decoder's own positions.
    own: Option<&'c mut KeyValueCache>,
    /// Keys and values of the encoder's positions, one pair per layer; empty before the first run.
    known: &'c [(Tensor<4>, Tensor<4>)],
}

/// Callbacks that return the model's identity and the text hashes.
type Sources<'p> = (&'p dyn Fn() -> Arc<ModelIdentity>, &'p dyn Fn() -> Option<Vec<TextHashes>>);

/// Combines hashes of the decoder's texts with hashes of the encoder's.
fn both_hashes(read: &[TextHashes], written: &[TextHashes]) -> Vec<TextHashes> {
    read.iter().zip(written).map(|(read, written)| TextHashes { read: read.whole, ..*written }).collect()
}
