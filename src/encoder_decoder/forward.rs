//! One run: the encoder over its tokens, the decoder over its own.

use burn::tensor::{Bool, Tensor, TensorData};
use hooklens_hooks::{ActivationCache, Halt, PointInfo, Rows, Run, Segment, Silent};

use super::HookedEncoderDecoder;
use super::bias::{Buckets, position_bias};
use super::cache::{CrossKeys, DecoderCache};
use super::input::EncoderDecoderInput;
use super::points::{CROSS, DECODER, ENCODER};
use super::weights::DecoderBlock;
use crate::device::guarded;
use crate::driver::{ForwardOptions, HookedModel, Input, Logits, Plan, RunOutput, drive, logits_of, private};
use crate::error::{InputError, Result};
use crate::kv_cache::{KeyValueCache, Keys, Transaction};
use crate::model::{
    NormPoints, Pass, ProjectionInput, Sequence, attention_reads, last_rows, mix, raw_scores, softmax_rows,
    token_vectors,
};
use crate::points::{Outer, Site};
use crate::tokens::Tokens;

/// The output of a run.
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let output = model.run(([5, 6, 7, 1], [0, 4]), Record::new("*cross_attn.hook_pattern"))?;
/// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 2, model.config().d_vocab]));
/// let pattern: Tensor<4> = output.cache.get("decoder.0.cross_attn.hook_pattern")?;
/// assert_eq!(pattern.dims()[2..], [2, 4]); // [decoder_pos, encoder_pos]
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct EncoderDecoderOutput {
    /// `[batch, decoder_pos, d_vocab]`, `[batch, 1, d_vocab]` for [`Logits::Last`]; none for
    /// [`Logits::None`].
    pub logits: Option<Tensor<3>>,
    /// What was recorded.
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
        Self { logits: self.logits.map(Tensor::without_autodiff), cache: self.cache.map(|held| held.detached()) }
    }
}

/// The encoder's output for a batch, which the decoder attends to.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let mut encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
/// assert_eq!((encoded.shape(), encoded.hidden.dims()[2]), ([1, 4], model.config().d_model));
/// let before = model.decode(&encoded, vec![vec![0, 4]])?.logits;
/// encoded.hidden = encoded.hidden.zeros_like(); // the decoder sees nothing of the input
/// let after = model.decode(&encoded, vec![vec![0, 4]])?.logits;
/// let gap = before.zip(after).map(|(a, b)| (a - b).abs().max().into_scalar::<f32>());
/// assert!(gap.is_some_and(|gap| gap > 0.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The encoder's last normalized stream, `[batch, pos, d_model]`. It is the decoder's
    /// only view of the input.
    pub hidden: Tensor<3>,
    pub(super) mask: Option<Vec<bool>>,
}

impl Encoded {
    /// Rows and positions.
    pub fn shape(&self) -> [usize; 2] {
        let [batch, len, _] = self.hidden.dims();
        [batch, len]
    }

    /// Each row `times` times, one behind the other: one input for several decoded texts.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
    /// // Two texts of one input.
    /// let logits = model.decode(&encoded.repeat(2), vec![vec![0, 4], vec![0, 9]])?.logits;
    /// assert_eq!(logits.map(|logits| logits.dims()[..2].to_vec()), Some(vec![2, 2]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn repeat(&self, times: usize) -> Self {
        let [batch, len, width] = self.hidden.dims();
        let wide = self.hidden.clone().unsqueeze_dim::<4>(1).expand([batch, times, len, width]);
        let rows = |mask: &Vec<bool>| mask.chunks(len).flat_map(|row| row.repeat(times)).collect();
        Self { hidden: wide.reshape([batch * times, len, width]), mask: self.mask.as_ref().map(rows) }
    }

    /// `true` at padding, `[batch, 1, 1, pos]`; none where every position is real.
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
        let (tokens, written) = self.both_tokens(input)?;
        let (encoder, decoder) = (Sequence::of(&tokens), Sequence::of(&written));
        let (encoder_real, decoder_real) = (encoder.query_mask(), decoder.query_mask());
        let rows = decoder.rows(decoder_real.as_deref());
        let silent = |_: &PointInfo| None;
        let mut plan = self.plan(&decoder, rows, options.logits, &silent);
        plan.at_once = plan.at_once.max(self.plan(&encoder, rows, Logits::None, &silent).at_once);
        let logits = options.logits;
        let (made, cache) = drive(plan, &mut options.hooks, options.record, |run| {
            run.over(encoder.rows(encoder_real.as_deref()))?;
            let encoded = self.encoder_pass(&tokens, &encoder, run)?;
            run.over(rows)?;
            let alone = PastKeys { own: None, known: &[] };
            self.decoder_pass(&encoded, alone, (&written, &decoder), logits, run)
        })?;
        Ok(EncoderDecoderOutput { logits: made.and_then(|(logits, _)| logits), cache })
    }

    /// Runs the encoder alone.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let record = Record::new("encoder.0.attn.hook_pattern");
    /// let (encoded, recorded) = model.encode_with(vec![vec![5, 6, 7, 1]], record)?;
    /// assert_eq!((encoded.shape(), recorded.len()), ([1, 4], 1));
    /// assert!(model.encode_with(vec![vec![5]], Record::new("decoder.0.hook_resid_pre")).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; a point of the decoder is one.
    pub fn encode(&self, input: impl Into<Input>) -> Result<Encoded> {
        Ok(self.encode_with(input, ForwardOptions::new())?.0)
    }

    /// [`encode`](HookedEncoderDecoder::encode) with hooks and recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let record = Record::new("encoder.0.attn.hook_pattern");
    /// let (encoded, recorded) = model.encode_with([5, 6, 7, 1], record)?;
    /// assert_eq!((encoded.shape(), recorded.len()), ([1, 4], 1));
    /// assert!(model.encode_with([5], Record::new("decoder.0.hook_resid_pre")).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; a point of the decoder is one.
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
        let real = sequence.query_mask();
        let silent = |point: &PointInfo| (point.segment != Segment::Encoder).then_some("only the encoder runs");
        let plan = self.plan(&sequence, sequence.rows(real.as_deref()), Logits::None, &silent);
        let pass = |run: &mut Run<'_, '_>| self.encoder_pass(&tokens, &sequence, run);
        let plan = Plan { stop_when_done: false, ..plan };
        let (encoded, cache) = drive(plan, &mut options.hooks, options.record, pass)?;
        Ok((encoded.ok_or(InputError::NoOutput { what: "encoding" })?, cache))
    }

    /// Runs the decoder alone, on an encoder's output.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
    /// let apart = model.decode(&encoded, vec![vec![0, 4]])?.logits;
    /// let at_once = model.forward(([5, 6, 7, 1], [0, 4]))?;
    /// assert!(apart.is_some_and(|apart| (apart - at_once).abs().max().into_scalar::<f32>() < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; a point of the encoder is one.
    pub fn decode(&self, encoded: &Encoded, decoder_input: impl Into<Input>) -> Result<EncoderDecoderOutput> {
        self.decode_with(encoded, decoder_input, ForwardOptions::new())
    }

    /// [`decode`](HookedEncoderDecoder::decode) with hooks and recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let encoded = model.encode([5, 6, 7, 1])?;
    /// let record = Record::new("decoder.*.cross_attn.hook_pattern");
    /// let pattern = model.decode_with(&encoded, [0, 4], record)?.cache.get(hook::cross_pattern(0))?;
    /// assert_eq!(pattern.dims()[2..], [2, 4]); // [decoder_pos, encoder_pos]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; a point of the encoder is one.
    pub fn decode_with<'h>(
        &self,
        encoded: &Encoded,
        decoder_input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        guarded(|| self.devices(), || self.run_decoder(encoded, None, decoder_input.into(), options.into()))
    }

    /// Runs the decoder behind what a cache holds, and adds to it unless it is frozen. The input is what comes
    /// after that.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
    /// let whole = model.decode(&encoded, vec![vec![0, 4, 9]])?.logits;
    /// let mut cache = model.decoder_cache(encoded);
    /// model.decode_cached(&mut cache, vec![vec![0, 4]])?;
    /// let behind = model.decode_cached(&mut cache, vec![vec![9]])?.logits; // what comes after
    /// let gap = whole.zip(behind).map(|(a, b)| (a.narrow(1, 2, 1) - b).abs().max().into_scalar::<f32>());
    /// assert!(gap.is_some_and(|gap| gap < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::decode`]; a cache made for another model or batch.
    pub fn decode_cached(
        &self,
        cache: &mut DecoderCache,
        decoder_input: impl Into<Input>,
    ) -> Result<EncoderDecoderOutput> {
        self.decode_cached_with(cache, decoder_input, ForwardOptions::new())
    }

    /// [`decode_cached`](HookedEncoderDecoder::decode_cached) with hooks and recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let mut cache = model.decoder_cache(model.encode([5, 6, 7, 1])?);
    /// let last = ForwardOptions::new().logits(Logits::Last);
    /// let logits = model.decode_cached_with(&mut cache, [0, 4], last)?.logits;
    /// assert_eq!(logits.map(|logits| logits.dims()[1]), Some(1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`decode_cached`](HookedEncoderDecoder::decode_cached).
    pub fn decode_cached_with<'h>(
        &self,
        cache: &mut DecoderCache,
        decoder_input: impl Into<Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        let encoded = cache.encoded.clone();
        guarded(|| self.devices(), || self.run_decoder(&encoded, Some(cache), decoder_input.into(), options.into()))
    }

    fn run_decoder(
        &self,
        encoded: &Encoded,
        cache: Option<&mut DecoderCache>,
        written: Input,
        mut options: ForwardOptions<'_>,
    ) -> Result<EncoderDecoderOutput> {
        options.check_plain("a decoder behind an encoder")?;
        let written = self.token_input(written)?;
        let shape @ [batch, _] = written.shape();
        if let Some(cache) = &cache {
            cache.own.check(&self.decoder_stack, shape, self.weights.embed.val().dtype(), |_| self.device())?;
        }
        if encoded.shape()[0] != batch {
            return Err(InputError::Rows { encoder: encoded.shape()[0], decoder: batch }.into());
        }
        let sequence = match &cache {
            Some(cache) => Sequence::behind(&cache.own, shape, written.mask()),
            None => Sequence::of(&written),
        };
        let real = sequence.query_mask();
        let held = cache.as_ref().is_some_and(|cache| !cache.cross.is_empty());
        let silent = |point: &PointInfo| match point.segment {
            Segment::Encoder => Some("the encoder has run already; hook or record it in `encode`"),
            Segment::CrossKeys if held => Some("the cache holds the encoder's keys and values"),
            _ => None,
        };
        let plan = self.plan(&sequence, sequence.rows(real.as_deref()), options.logits, &silent);
        let plan = Plan { stop_when_done: plan.stop_when_done && cache.is_none(), ..plan };
        let (mut own, cross) = match cache {
            Some(DecoderCache { own, cross, .. }) => (Some(own.begin()), Some(cross)),
            None => (None, None),
        };
        let known = cross.as_deref().map_or(&[][..], Vec::as_slice);
        let logits = options.logits;
        let (made, recorded) = drive(plan, &mut options.hooks, options.record, |run| {
            let behind = PastKeys { own: own.as_mut().map(Transaction::cache), known };
            self.decoder_pass(encoded, behind, (&written, &sequence), logits, run)
        })?;
        let (logits, keys) = made.unwrap_or_default();
        if let Some(own) = own {
            let keeps = own.keeps();
            own.commit(shape, written.mask(), &options.hooks, self.points.named_parts())?;
            // What the encoder's positions gave is kept with the run that made it, never of one that failed.
            if let Some(cross) = cross.filter(|cross| keeps && cross.is_empty()) {
                *cross = keys;
            }
        }
        Ok(EncoderDecoderOutput { logits, cache: recorded })
    }

    /// The plan of a run over one stack's positions.
    fn plan<'p>(&'p self, over: &Sequence, rows: Rows<'p>, logits: Logits, silent: Silent<'p>) -> Plan<'p> {
        let tokens = over.batch.saturating_mul(over.len);
        let wide = match logits {
            Logits::All => tokens.saturating_mul(self.config.d_vocab),
            Logits::Last => over.batch.saturating_mul(self.config.d_vocab),
            Logits::None => 0,
        };
        Plan {
            points: &self.points,
            device: self.weights.embed.val().device(),
            dtype: self.weights.embed.val().dtype(),
            rows,
            silent,
            at_once: wide.max(tokens.saturating_mul(self.decoder_stack.d_mlp)),
            shape: &self.decoder_stack,
            stop_when_done: logits == Logits::None,
        }
    }

    fn buckets(&self, bidirectional: bool) -> Buckets {
        let (count, max_distance) = (self.config.relative_buckets, self.config.relative_max_distance);
        Buckets { count, max_distance, bidirectional }
    }

    fn encoder_pass(&self, tokens: &Tokens, sequence: &Sequence, run: &mut Run<'_, '_>) -> Result<Encoded, Halt> {
        let weights = &self.weights;
        let table = weights.embed.val();
        let (device, dtype) = (table.device(), table.dtype());
        let mut resid = run.fire(self.points.outer(Outer::EncoderEmbed), token_vectors(table, tokens, dtype))?;
        let mut pass = Pass::new(&self.encoder_stack, self.points.stack(ENCODER), sequence, None, &device, dtype);
        pass.score_bias = Some(position_bias(weights.encoder_bias.val(), sequence, self.buckets(true)));
        for (layer, block) in weights.encoder.iter().enumerate() {
            resid = block.forward(layer, resid, &mut pass, run)?;
        }
        let [scale, normalized] =
            [Outer::EncoderFinalScale, Outer::EncoderFinalNormalized].map(|point| self.points.outer(point));
        let hidden = weights.encoder_ln.forward(resid, NormPoints { scale, normalized }, run)?;
        Ok(Encoded { hidden, mask: sequence.query_mask() })
    }

    fn decoder_pass(
        &self,
        encoded: &Encoded,
        behind: PastKeys<'_>,
        (written, sequence): (&Tokens, &Sequence),
        logits: Logits,
        run: &mut Run<'_, '_>,
    ) -> Result<(Option<Tensor<3>>, CrossKeys), Halt> {
        let weights = &self.weights;
        let table = weights.embed.val();
        let (device, dtype) = (table.device(), table.dtype());
        let mut resid = token_vectors(table, written, dtype);
        let PastKeys { own, known } = behind;
        let mut made = Vec::new();
        let mut pass = Pass::new(&self.decoder_stack, self.points.stack(DECODER), sequence, own, &device, dtype);
        pass.score_bias = Some(position_bias(weights.decoder_bias.val(), sequence, self.buckets(false)));
        let mut cross = Pass::new(&self.decoder_stack, self.points.stack(CROSS), sequence, None, &device, dtype);
        let hidden_keys = encoded.hidden_keys();
        for (layer, block) in weights.decoder.iter().enumerate() {
            let across = CrossInputs { pass: &mut cross, encoded, hidden_keys: &hidden_keys, known: known.get(layer) };
            let keys;
            (resid, keys) = block.forward(layer, resid, &mut pass, across, run)?;
            made.push(keys);
        }
        let [scale, normalized] =
            [Outer::DecoderFinalScale, Outer::DecoderFinalNormalized].map(|point| self.points.outer(point));
        let mut last = weights.decoder_ln.forward(resid, NormPoints { scale, normalized }, run)?;
        if logits == Logits::None {
            return Ok((None, made));
        }
        if logits == Logits::Last {
            last = last_rows(last, sequence);
        }
        if let Some(scale) = self.config.output_scale {
            last = last * scale;
        }
        Ok((Some(weights.unembed.forward(last)), made))
    }
}

/// Keys and values of earlier runs of the decoder.
struct PastKeys<'c> {
    /// Keys and values of its own positions.
    own: Option<&'c mut KeyValueCache>,
    /// Those of the encoder's positions, a pair a layer; none before the first run.
    known: &'c [(Tensor<4>, Tensor<4>)],
}

/// The inputs of a decoder block's cross attention.
struct CrossInputs<'a, 'p> {
    pass: &'a mut Pass<'p>,
    encoded: &'a Encoded,
    hidden_keys: &'a Option<Tensor<4, Bool>>,
    /// Keys and values computed by an earlier run.
    known: Option<&'a (Tensor<4>, Tensor<4>)>,
}

impl DecoderBlock {
    /// The stream after the block, `[batch, pos, d_model]`, and the encoder's keys and values.
    fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        across: CrossInputs<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let resid = run.fire(at(Site::ResidPre), resid)?;
        let (reads, _) = attention_reads(&self.ln1, layer, &resid, pass, run)?;
        let out = self.attn.forward(layer, reads, pass, run)?;
        let out = run.fire(at(Site::AttnOut), out)?;
        let resid = run.fire(at(Site::ResidMid), resid + out)?;

        let read = run.fire(at(Site::CrossAttnIn), resid.clone())?;
        let read = self.ln2.forward(read, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
        let (out, keys) = self.cross(layer, read, across, run)?;
        let out = run.fire(at(Site::CrossAttnOut), out)?;
        let resid = run.fire(at(Site::ResidMidCross), resid + out)?;

        let read = run.fire(at(Site::MlpIn), resid.clone())?;
        let read = self.ln3.forward(read, norm(Site::Ln3Scale, Site::Ln3Normalized), run)?;
        let read = run.fire(at(Site::MlpReads), read)?;
        let out = self.mlp.forward(layer, read, pass, run)?;
        let out = run.fire(at(Site::MlpWrites), out)?;
        let out = run.fire(at(Site::MlpOut), out)?;
        Ok((run.fire(at(Site::ResidPost), resid + out)?, keys))
    }

    /// What attention to the encoder adds to the stream, `[batch, pos, d_model]`, and the keys and values it
    /// read.
    fn cross(
        &self,
        layer: usize,
        read: Tensor<3>,
        CrossInputs { pass, encoded, hidden_keys, known }: CrossInputs<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let at = |site| pass.points.at(layer, site);
        let (attn, heads) = (&self.cross_attn, pass.config.n_heads);
        let q = run.fire(at(Site::Q), ProjectionInput::Shared(read).project(&attn.q, heads))?;
        let (k, v) = match known {
            Some(known) => known.clone(),
            None => {
                let hidden = || ProjectionInput::Shared(encoded.hidden.clone());
                let k = run.fire(at(Site::K), hidden().project(&attn.k, heads))?;
                (k, run.fire(at(Site::V), hidden().project(&attn.v, heads))?)
            }
        };
        let keys = Keys::whole(k.clone(), v.clone());
        let mut scores = raw_scores(layer, q, &keys, pass);
        if let Some(hidden) = hidden_keys {
            let shape = scores.dims();
            scores = scores.mask_fill(hidden.clone().expand(shape), f32::NEG_INFINITY);
        }
        let edited = run.edits(at(Site::AttnScores));
        let scores = run.fire(at(Site::AttnScores), scores)?;
        let pattern = run.fire(at(Site::Pattern), softmax_rows(scores, edited || hidden_keys.is_some()))?;
        let z = run.fire(at(Site::Z), mix(pattern, &keys))?;
        Ok((attn.output(layer, z, pass, run)?, (k, v)))
    }
}
