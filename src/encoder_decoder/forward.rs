//! One run: the encoder over its tokens, the decoder over its own.

use burn::tensor::{Bool, Tensor, TensorData};
use hooklens_hooks::{ActivationCache, Halt, Hook, PointInfo, Record, Rows, Run};

use super::HookedEncoderDecoder;
use super::bias::{Buckets, position_bias};
use super::cache::{CrossKeys, DecoderCache};
use super::points::of_encoder;
use super::weights::DecoderBlock;
use crate::error::{InputError, Result};
use crate::kv_cache::{Growth, KeyValueCache, Keys};
use crate::model::{
    Input, Logits, NormPoints, Pass, Sequence, Site, Stream, attention_reads, last_rows, mix, raw_scores, softmax_rows,
    token_vectors,
};
use crate::tokens::Tokens;

/// What to do in one run. `()` stands for all logits and nothing else, a [`Record`] for a recording too.
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// use hooklens::encoder_decoder::EncoderDecoderOptions;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let deaf = at("decoder.*.cross_attn.hook_z").edit(|z: Tensor<4>, _| z.zeros_like());
/// let options = EncoderDecoderOptions::new().hooks([deaf]).logits(Logits::Last);
/// let [a, b] = [vec![vec![5, 6, 7]], vec![vec![8, 9, 10]]];
/// let one = model.forward(a, vec![vec![0, 4]], options)?;
/// let deaf = at("decoder.*.cross_attn.hook_z").edit(|z: Tensor<4>, _| z.zeros_like());
/// let options = EncoderDecoderOptions::new().hooks([deaf]).logits(Logits::Last);
/// let other = model.forward(b, vec![vec![0, 4]], options)?;
/// assert!((one - other).abs().max().into_scalar::<f32>() < 1e-5); // it hears nothing of the input
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct EncoderDecoderOptions<'h> {
    pub(super) hooks: Vec<Hook<'h>>,
    pub(super) record: Record,
    pub(super) logits: Logits,
}

impl<'h> EncoderDecoderOptions<'h> {
    /// All logits, no hooks, no recordings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds hooks, run after those added before.
    #[must_use]
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Records activations.
    #[must_use]
    pub fn record(mut self, record: impl Into<Record>) -> Self {
        self.record = record.into();
        self
    }

    /// Which of the decoder's logits to compute.
    #[must_use]
    pub fn logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }
}

impl From<()> for EncoderDecoderOptions<'_> {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Record> for EncoderDecoderOptions<'_> {
    fn from(record: Record) -> Self {
        Self::new().record(record)
    }
}

/// What a run gives.
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let output = model.run(vec![vec![5, 6, 7, 1]], vec![vec![0, 4]], Record::new("*cross_attn.hook_pattern"))?;
/// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 2, model.config().d_vocab]));
/// let pattern: Tensor<4> = output.cache.get("decoder.0.cross_attn.hook_pattern")?;
/// assert_eq!(pattern.dims()[2..], [2, 4]); // [decoder_pos, encoder_pos]
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct EncoderDecoderOutput {
    /// `[batch, decoder_pos, d_vocab]`, `[batch, 1, d_vocab]` for [`Logits::Last`]; none for
    /// [`Logits::None`].
    pub logits: Option<Tensor<3>>,
    /// What was recorded.
    pub cache: ActivationCache,
}

/// What the encoder made of a batch: what the decoder attends to.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
/// let (mut encoded, _) = model.encode(vec![vec![5, 6, 7, 1]], ())?;
/// assert_eq!((encoded.shape(), encoded.hidden.dims()[2]), ([1, 4], model.config().d_model));
/// let before = model.decode(&encoded, vec![vec![0, 4]], ())?.logits;
/// encoded.hidden = encoded.hidden.zeros_like(); // nothing is known of the input any more
/// let after = model.decode(&encoded, vec![vec![0, 4]], ())?.logits;
/// let gap = before.zip(after).map(|(a, b)| (a - b).abs().max().into_scalar::<f32>());
/// assert!(gap.is_some_and(|gap| gap > 0.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The encoder's last normalised stream, `[batch, pos, d_model]`. An edit of it is an edit of all that the
    /// decoder knows of the input.
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
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let (encoded, _) = model.encode(vec![vec![5, 6, 7, 1]], ())?;
    /// // Two texts of one input.
    /// let logits = model.decode(&encoded.repeat(2), vec![vec![0, 4], vec![0, 9]], ())?.logits;
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
    /// Runs encoder and decoder.
    ///
    /// The decoder's input is what it has written so far, its start token first; padding on either side of either
    /// input changes nothing.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let output = model.run(vec![vec![5, 6, 7, 1]], vec![vec![0, 4]], Record::new("encoder.*.attn.hook_z"))?;
    /// assert_eq!(output.cache.len(), model.config().n_encoder_layers);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Bad input, rows that differ in number, and whatever a hook reports.
    pub fn run<'h>(
        &self,
        input: impl Into<Input>,
        decoder_input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        let mut options = options.into();
        let tokens = self.token_input(input.into())?;
        let written = self.token_input(decoder_input.into())?;
        let (encoder, decoder) = (Sequence::of(&tokens), Sequence::of(&written));
        if encoder.batch != decoder.batch {
            return Err(InputError::Rows { encoder: encoder.batch, decoder: decoder.batch }.into());
        }
        let (encoder_real, decoder_real) = (encoder.query_mask(), decoder.query_mask());
        let rows = rows_of(&decoder, decoder_real.as_deref());
        let silent = |_: &PointInfo| None;
        let mut run = Run::new(&self.points.catalog, &mut options.hooks, options.record, rows, &silent)?;
        run.over(rows_of(&encoder, encoder_real.as_deref()))?;
        let encoded = self.encoder_pass(&tokens, &encoder, &mut run)?;
        run.over(rows)?;
        let alone = Behind { own: None, known: &[] };
        let (logits, _) = self.decoder_pass(&encoded, alone, (&written, &decoder), options.logits, &mut run)?;
        Ok(EncoderDecoderOutput { logits, cache: run.finish()? })
    }

    /// The decoder's logits, `[batch, decoder_pos, d_vocab]`.
    ///
    /// ```
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let logits = model.forward(vec![vec![5, 6, 7, 1]], vec![vec![0, 4, 9]], ())?;
    /// assert_eq!(logits.dims(), [1, 3, model.config().d_vocab]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::run`].
    pub fn forward<'h>(
        &self,
        input: impl Into<Input>,
        decoder_input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
    ) -> Result<Tensor<3>> {
        let logits = self.run(input, decoder_input, options)?.logits;
        Ok(logits.ok_or(InputError::Options("no logits were asked for; use `run`"))?)
    }

    /// Runs the encoder alone.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let record = Record::new("encoder.0.attn.hook_pattern");
    /// let (encoded, recorded) = model.encode(vec![vec![5, 6, 7, 1]], record)?;
    /// assert_eq!((encoded.shape(), recorded.len()), ([1, 4], 1));
    /// assert!(model.encode(vec![vec![5]], Record::new("decoder.0.hook_resid_pre")).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::run`]; a point of the decoder is one.
    pub fn encode<'h>(
        &self,
        input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
    ) -> Result<(Encoded, ActivationCache)> {
        let mut options = options.into();
        let tokens = self.token_input(input.into())?;
        let sequence = Sequence::of(&tokens);
        let real = sequence.query_mask();
        let silent = |point: &PointInfo| (!of_encoder(point)).then_some("only the encoder runs");
        let rows = rows_of(&sequence, real.as_deref());
        let mut run = Run::new(&self.points.catalog, &mut options.hooks, options.record, rows, &silent)?;
        let encoded = self.encoder_pass(&tokens, &sequence, &mut run)?;
        Ok((encoded, run.finish()?))
    }

    /// Runs the decoder alone, on what the encoder has made.
    ///
    /// ```
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let (encoded, _) = model.encode(vec![vec![5, 6, 7, 1]], ())?;
    /// let apart = model.decode(&encoded, vec![vec![0, 4]], ())?.logits;
    /// let at_once = model.forward(vec![vec![5, 6, 7, 1]], vec![vec![0, 4]], ())?;
    /// assert!(apart.is_some_and(|apart| (apart - at_once).abs().max().into_scalar::<f32>() < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::run`]; a point of the encoder is one.
    pub fn decode<'h>(
        &self,
        encoded: &Encoded,
        decoder_input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        let written = self.token_input(decoder_input.into())?;
        self.decoder_run(encoded, None, &written, options.into())
    }

    /// Runs the decoder behind what a cache holds, and adds to it unless it is frozen. The input is what comes
    /// after that.
    ///
    /// ```
    /// # use hooklens::encoder_decoder::HookedEncoderDecoder;
    /// # let model = HookedEncoderDecoder::from_pretrained("tests/fixtures/t5")?;
    /// let (encoded, _) = model.encode(vec![vec![5, 6, 7, 1]], ())?;
    /// let whole = model.decode(&encoded, vec![vec![0, 4, 9]], ())?.logits;
    /// let mut cache = model.decoder_cache(encoded);
    /// model.decode_cached(&mut cache, vec![vec![0, 4]], ())?;
    /// let behind = model.decode_cached(&mut cache, vec![vec![9]], ())?.logits; // what comes after
    /// let gap = whole.zip(behind).map(|(a, b)| (a.narrow(1, 2, 1) - b).abs().max().into_scalar::<f32>());
    /// assert!(gap.is_some_and(|gap| gap < 1e-4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedEncoderDecoder::decode`]; a cache made for another model or batch.
    pub fn decode_cached<'h>(
        &self,
        cache: &mut DecoderCache,
        decoder_input: impl Into<Input>,
        options: impl Into<EncoderDecoderOptions<'h>>,
    ) -> Result<EncoderDecoderOutput> {
        let written = self.token_input(decoder_input.into())?;
        let encoded = cache.encoded.clone();
        let shape = written.shape();
        cache.own.check(&self.decoder_stack, shape, self.weights.embed.val().dtype(), |_| self.device())?;
        self.decoder_run(&encoded, Some(cache), &written, options.into())
    }

    fn decoder_run(
        &self,
        encoded: &Encoded,
        cache: Option<&mut DecoderCache>,
        written: &Tokens,
        mut options: EncoderDecoderOptions<'_>,
    ) -> Result<EncoderDecoderOutput> {
        let [batch, len] = written.shape();
        if encoded.shape()[0] != batch {
            return Err(InputError::Rows { encoder: encoded.shape()[0], decoder: batch }.into());
        }
        let sequence = match &cache {
            Some(cache) => Sequence::behind(&cache.own, [batch, len], written.mask()),
            None => Sequence::of(written),
        };
        let real = sequence.query_mask();
        let held = cache.as_ref().is_some_and(|cache| !cache.cross.is_empty());
        let silent = |point: &PointInfo| match &*point.name {
            _ if of_encoder(point) => Some("the encoder has run already; hook or record it in `encode`"),
            name if held && (name.ends_with("cross_attn.hook_k") || name.ends_with("cross_attn.hook_v")) => {
                Some("the cache holds the encoder's keys and values")
            }
            _ => None,
        };
        let rows = rows_of(&sequence, real.as_deref());
        let mut run = Run::new(&self.points.catalog, &mut options.hooks, options.record, rows, &silent)?;
        let (mut own, cross) = match cache {
            Some(DecoderCache { own, cross, .. }) => (Some(own.grow()), Some(cross)),
            None => (None, None),
        };
        let known = cross.as_deref().map_or(&[][..], Vec::as_slice);
        let behind = Behind { own: own.as_mut().map(Growth::cache), known };
        let (logits, made) = self.decoder_pass(encoded, behind, (written, &sequence), options.logits, &mut run)?;
        let recorded = run.finish()?;
        if let Some(own) = own {
            let keeps = own.keeps();
            own.commit([batch, len], written.mask(), &options.hooks)?;
            // What the encoder's positions gave is kept with the run that made it, never of one that failed.
            if let Some(cross) = cross.filter(|cross| keeps && cross.is_empty()) {
                *cross = made;
            }
        }
        Ok(EncoderDecoderOutput { logits, cache: recorded })
    }

    fn buckets(&self, bidirectional: bool) -> Buckets {
        let (count, max_distance) = (self.config.relative_buckets, self.config.relative_max_distance);
        Buckets { count, max_distance, bidirectional }
    }

    fn encoder_pass(&self, tokens: &Tokens, sequence: &Sequence, run: &mut Run<'_, '_>) -> Result<Encoded, Halt> {
        let weights = &self.weights;
        let table = weights.embed.val();
        let (device, dtype) = (table.device(), table.dtype());
        let mut resid = run.fire(self.points.embed, token_vectors(table, tokens))?;
        let mut pass = Pass::new(&self.encoder_stack, &self.points.encoder, sequence, None, &device, dtype);
        pass.score_bias = Some(position_bias(weights.encoder_bias.val(), sequence, self.buckets(true)));
        for (layer, block) in weights.encoder.iter().enumerate() {
            resid = block.forward(layer, resid, &mut pass, run)?;
        }
        let [scale, normalized] = self.points.encoder_ln;
        let hidden = weights.encoder_ln.forward(resid, NormPoints { scale, normalized }, run)?;
        Ok(Encoded { hidden, mask: sequence.query_mask() })
    }

    fn decoder_pass(
        &self,
        encoded: &Encoded,
        behind: Behind<'_>,
        (written, sequence): (&Tokens, &Sequence),
        logits: Logits,
        run: &mut Run<'_, '_>,
    ) -> Result<(Option<Tensor<3>>, CrossKeys), Halt> {
        let weights = &self.weights;
        let table = weights.embed.val();
        let (device, dtype) = (table.device(), table.dtype());
        let mut resid = token_vectors(table, written);
        let Behind { own, known } = behind;
        let mut made = Vec::new();
        let mut pass = Pass::new(&self.decoder_stack, &self.points.decoder, sequence, own, &device, dtype);
        pass.score_bias = Some(position_bias(weights.decoder_bias.val(), sequence, self.buckets(false)));
        let mut cross = Pass::new(&self.decoder_stack, &self.points.cross, sequence, None, &device, dtype);
        let hidden_keys = encoded.hidden_keys();
        for (layer, block) in weights.decoder.iter().enumerate() {
            let across = Across { pass: &mut cross, encoded, hidden_keys: &hidden_keys, known: known.get(layer) };
            let keys;
            (resid, keys) = block.forward(layer, resid, &mut pass, across, run)?;
            made.push(keys);
        }
        let [scale, normalized] = self.points.decoder_ln;
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

/// What earlier runs of a decoder left to attend to.
struct Behind<'c> {
    /// Keys and values of its own positions.
    own: Option<&'c mut KeyValueCache>,
    /// Those of the encoder's positions, a pair a layer; none before the first run.
    known: &'c [(Tensor<4>, Tensor<4>)],
}

/// What a decoder's block attends to across the model.
struct Across<'a, 'p> {
    pass: &'a mut Pass<'p>,
    encoded: &'a Encoded,
    hidden_keys: &'a Option<Tensor<4, Bool>>,
    /// Keys and values made by a run before.
    known: Option<&'a (Tensor<4>, Tensor<4>)>,
}

impl DecoderBlock {
    /// The stream after the block, `[batch, pos, d_model]`, and the encoder's keys and values.
    fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        across: Across<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let resid = run.fire(at(Site::ResidPre), resid)?;
        let reads = attention_reads(&self.ln1, layer, &resid, pass, run)?;
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
        let out = self.mlp.forward(layer, read, pass, run)?;
        let out = run.fire(at(Site::MlpOut), out)?;
        Ok((run.fire(at(Site::ResidPost), resid + out)?, keys))
    }

    /// What attention to the encoder adds to the stream, `[batch, pos, d_model]`, and the keys and values it
    /// read.
    fn cross(
        &self,
        layer: usize,
        read: Tensor<3>,
        Across { pass, encoded, hidden_keys, known }: Across<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let at = |site| pass.points.at(layer, site);
        let (attn, heads) = (&self.cross_attn, pass.config.n_heads);
        let q = run.fire(at(Site::Q), Stream::Shared(read).project(&attn.q, heads))?;
        let (k, v) = match known {
            Some(known) => known.clone(),
            None => {
                let hidden = || Stream::Shared(encoded.hidden.clone());
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

fn rows_of<'m>(sequence: &Sequence, real: Option<&'m [bool]>) -> Rows<'m> {
    Rows { batch: sequence.batch, len: sequence.len, real, offset: sequence.past }
}
