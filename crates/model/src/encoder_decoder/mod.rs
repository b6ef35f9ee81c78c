//! Encoder-decoder models such as Marian, BART, T5 and T5Gemma: an encoder stack, and a decoder stack that attends to
//! it.

mod block;
mod cache;
mod config;
mod decode_from;
mod fingerprint;
mod forward;
mod generate;
mod input;
mod loaded;
mod names;
mod points;
mod positions;
mod rules;
mod sinusoids;
mod unembed;
mod weights;

use std::fmt::{self, Display as _};
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Catalog, PointId, PointInfo, Segment};

pub use cache::DecoderCache;
pub use config::{EncoderDecoderConfig, StackAttention};
pub use decode_from::DecodeFrom;
pub use forward::{Encoded, EncoderDecoderOutput};
pub use input::EncoderDecoderInput;
pub use loaded::LoadedEncoderDecoder;
pub use positions::{PositionTable, StackPositions};
pub use rules::TokenRules;
pub use sinusoids::Sinusoids;
pub use weights::{DecoderBlock, EncoderBlock, EncoderDecoderWeights};

use crate::config::{ConfigError, TransformerConfig};
use crate::driver::{ForwardOptions, HookedModel, Input, logits_of, private};
use crate::error::{InputError, Result};
use crate::model::{Hashed, Identities, LoadReport, ModelWeights, Summary, Weights, hash_of};
use crate::points::{Points, Site};
use crate::tokens::{PaddingSide, Texts, Tokenizer, Tokens};
use points::{CROSS, points_of};

/// Hooked encoder-decoder: every internal activation has a name and can be read and edited. Supports T5, Marian, BART,
/// NLLB and others.
///
/// Hook points have the names of TransformerLens's `HookedEncoderDecoder`: `encoder.3.attn.hook_pattern`,
/// `decoder.0.cross_attn.hook_pattern` (`[batch, head, decoder_pos, encoder_pos]`), ...
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let (input, written) = (vec![vec![5, 6, 7, 1]], vec![vec![model.decoder_start_token()]]);
/// let cache = model.run((input, written), Record::all())?.cache;
/// let (there, here): (Tensor<3>, Tensor<3>) =
///     (cache.get("encoder.0.hook_resid_pre")?, cache.get("decoder.0.hook_resid_pre")?);
/// assert_eq!((there.dims()[1], here.dims()[1]), (4, 1)); // two streams
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone)]
pub struct HookedEncoderDecoder {
    weights: Weights<EncoderDecoderWeights>,
    config: Arc<EncoderDecoderConfig>,
    /// Configuration of the encoder's blocks.
    encoder_stack: Arc<TransformerConfig>,
    /// Configuration of the decoder's blocks.
    decoder_stack: Arc<TransformerConfig>,
    pub(crate) points: Arc<Points>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// End-of-sequence tokens named in the model's files.
    ends: Arc<[u32]>,
    report: Arc<LoadReport>,
    identities: Arc<Identities>,
}

impl fmt::Debug for HookedEncoderDecoder {
    /// Formats a one-line summary: name, family, sizes of both stacks, element type and device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, dtype, devices) = (&*self.report, self.weights.parts.embed.val().dtype(), self.devices());
        let stacks = &[("encoder: ", &*self.encoder_stack), ("decoder: ", &*self.decoder_stack)];
        Summary { kind: "HookedEncoderDecoder", report, stacks, dtype, devices }.fmt(f)
    }
}

impl TryFrom<LoadedEncoderDecoder> for HookedEncoderDecoder {
    type Error = ConfigError;

    fn try_from(loaded: LoadedEncoderDecoder) -> std::result::Result<Self, ConfigError> {
        let LoadedEncoderDecoder { config, weights, tokenizer, eos_tokens, report } = loaded;
        Ok(Self {
            identities: Identities::of(&weights),
            weights: Weights { parts: weights },
            points: Arc::new(points_of(&config)),
            encoder_stack: Arc::new(config.stack(false)?),
            decoder_stack: Arc::new(config.stack(true)?),
            config: Arc::new(config),
            tokenizer: tokenizer.map(Arc::new),
            ends: eos_tokens.into(),
            report: Arc::new(report),
        })
    }
}

impl ModelWeights for HookedEncoderDecoder {
    type Parts = EncoderDecoderWeights;

    fn weights(&self) -> &Weights<EncoderDecoderWeights> {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut Weights<EncoderDecoderWeights> {
        &mut self.weights
    }

    fn map_weights(
        self,
        change: impl FnOnce(Weights<EncoderDecoderWeights>) -> Weights<EncoderDecoderWeights>,
    ) -> Self {
        Self { weights: change(self.weights), ..self }
    }

    fn fingerprint(&self) -> Result<String> {
        hash_of(&*self.config, &self.weights.parts, Hashed::default())
    }

    fn load_report(&self) -> &LoadReport {
        &self.report
    }
}

impl HookedEncoderDecoder {
    /// End-of-sequence tokens, each of which stops generation: `eos_token_id` from `generation_config.json`, or else
    /// from `config.json`, or else the tokenizer's.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert_eq!(model.eos_tokens(), [1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn eos_tokens(&self) -> Vec<u32> {
        match &self.ends[..] {
            [] => self.tokenizer.as_ref().and_then(|own| own.target().eos()).into_iter().collect(),
            ends => ends.to_vec(),
        }
    }

    /// Configuration of the encoder's blocks: their sizes, norms and activation function. Positions and embeddings are
    /// not part of it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert_eq!((model.encoder_config().n_layers(), model.decoder_config().n_layers()), (2, 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn encoder_config(&self) -> &TransformerConfig {
        &self.encoder_stack
    }

    /// Configuration of the decoder's blocks, as in [`encoder_config`](Self::encoder_config).
    pub fn decoder_config(&self) -> &TransformerConfig {
        &self.decoder_stack
    }

    /// Token that every decoded text starts with.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert_eq!(model.decoder_start_token(), 0); // T5 starts with padding
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn decoder_start_token(&self) -> u32 {
        self.config.decoder_start_token
    }

    /// Tokenizes one or more texts for the encoder, with the tokenizer's end-of-sequence token, padded on the right.
    ///
    /// ```no_run
    /// use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("t5-small")?;
    /// let tokens = model.to_tokens(["translate English to German: Hello", "summarize: ..."])?;
    /// assert_eq!(tokens.real(0).last(), model.tokenizer()?.eos().as_ref()); // end of sequence
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if there is no tokenizer, no text, or a text that the tokenizer rejects.
    pub fn to_tokens(&self, texts: impl Into<Texts>) -> Result<Tokens> {
        tokens_after(self.tokenizer()?, texts.into(), &[])
    }

    /// Like [`to_tokens`](HookedEncoderDecoder::to_tokens), for texts in a language other than the tokenizer's default,
    /// in models that mark the language with a token: NLLB, mBART, M2M-100.
    ///
    /// ```no_run
    /// use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("facebook/nllb-200-distilled-600M")?;
    /// let rows = model.to_tokens_of("fra_Latn", "Il pleut.")?;
    /// assert_eq!(Some(rows.row(0)[0]), model.tokenizer()?.id("fra_Latn"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as `to_tokens`; [`InputError::Setting`] if the language is not a token or the tokenizer adds no language
    /// token.
    pub fn to_tokens_of(&self, language: &str, texts: impl Into<Texts>) -> Result<Tokens> {
        let tokenizer = self.tokenizer()?;
        let setting = |allowed: &str| -> crate::error::Error {
            InputError::Setting { name: "language", given: language.into(), allowed: allowed.into() }.into()
        };
        let wanted = tokenizer.id(language).ok_or_else(|| setting("a token of the vocabulary"))?;
        // Tokens added to every text: a language and the end of sequence.
        let around = tokenizer.encode_special("", None)?.0;
        let own = around.iter().find(|id| Some(**id) != tokenizer.eos());
        let own = *own.ok_or_else(|| setting("none: this model's tokenizer does not mark the language"))?;
        let mut rows = Vec::new();
        for text in texts.into().0 {
            let mut row = tokenizer.encode_special(&text, None)?.0;
            let at = if row.first() == Some(&own) { Some(0) } else { row.iter().rposition(|id| *id == own) };
            row[at.ok_or_else(|| setting("none: this model's tokenizer does not mark the language"))?] = wanted;
            rows.push(row);
        }
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        Ok(Tokens::padded(&rows, tokenizer.pad(), PaddingSide::Right)?)
    }

    /// Tokens of the encoder's input.
    fn token_input(&self, input: Input) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| self.to_tokens(texts))?;
        tokens.check(self.config.d_vocab)?;
        Ok(tokens)
    }

    /// Tokens of the decoder's input.
    fn written_input(&self, input: Input) -> Result<Tokens> {
        self.written_input_after(input, &[])
    }

    /// Tokens of the decoder's input after `held` cached tokens per row. A text that continues a row gets no special
    /// tokens.
    fn written_input_after(&self, input: Input, held: &[usize]) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| tokens_after(self.tokenizer()?.target(), texts.into(), held))?;
        tokens.check(self.config.d_decoder_vocab)?;
        Ok(tokens)
    }
}

/// Tokenizes texts, padded on the right. The tokenizer's special tokens are added unless the row already has cached
/// tokens.
fn tokens_after(tokenizer: &Tokenizer, texts: Texts, held: &[usize]) -> Result<Tokens> {
    let row = |(row, text): (usize, &String)| match held.get(row) {
        Some(1..) => tokenizer.encode(text),
        _ => Ok(tokenizer.encode_special(text, None)?.0),
    };
    let rows = texts.0.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() {
        return Err(InputError::Empty { what: "the list of texts".into() }.into());
    }
    Ok(Tokens::padded(&rows, tokenizer.pad(), PaddingSide::Right)?)
}

/// Tokens of the encoder and of the decoder. Without decoder input, the decoder gets the start token.
pub fn both_tokens(model: &HookedEncoderDecoder, input: EncoderDecoderInput) -> Result<(Tokens, Tokens)> {
    let read = model.token_input(input.encoder)?;
    let written = match input.decoder {
        Some(written) => model.written_input(written)?,
        None => Tokens::new(vec![vec![model.config.decoder_start_token]; read.shape()[0]])?,
    };
    let [encoder, decoder] = [&read, &written].map(|tokens| tokens.shape()[0]);
    if encoder != decoder {
        return Err(InputError::Rows { encoder, decoder }.into());
    }
    Ok((read, written))
}

/// Tokens of a decoder text: the start token, followed by the text.
pub fn decoder_tokens(model: &HookedEncoderDecoder, text: Option<&str>) -> Result<Vec<u32>> {
    let text = match text {
        Some(text) => model.tokenizer()?.target().encode(text)?,
        None => Vec::new(),
    };
    Ok([vec![model.config.decoder_start_token], text].concat())
}

/// Whether a point is the cross-attention scores or pattern of a decoder layer.
pub fn attends_to_encoder(model: &HookedEncoderDecoder, point: PointId) -> bool {
    let cross = model.points.stack(CROSS);
    let layers = 0..model.config.n_decoder_layers;
    let sites = [Site::AttnScores, Site::Pattern];
    layers.into_iter().any(|layer| sites.iter().any(|site| cross.at(layer, *site) == Some(point)))
}

/// The whole configuration of a model, with positions and embeddings.
pub fn config_of(model: &HookedEncoderDecoder) -> &EncoderDecoderConfig {
    &model.config
}

impl private::Sealed for HookedEncoderDecoder {}

impl private::Spliceable for HookedEncoderDecoder {
    fn points(&self) -> &Points {
        &self.points
    }

    fn with_points(&self, points: Points) -> Self {
        Self { points: Arc::new(points), ..self.clone() }
    }

    fn block_shape(&self) -> &TransformerConfig {
        &self.decoder_stack
    }

    fn shape_at(&self, point: &PointInfo) -> &TransformerConfig {
        if point.segment == Segment::Encoder { &self.encoder_stack } else { &self.decoder_stack }
    }
}

impl private::RunModel for HookedEncoderDecoder {
    type Input = EncoderDecoderInput;
    type Output = EncoderDecoderOutput;
    type Scored = Tensor<3>;

    fn run_checked(&self, input: EncoderDecoderInput, options: ForwardOptions<'_>) -> Result<EncoderDecoderOutput> {
        self.run_both(input, options)
    }

    fn scored(output: &EncoderDecoderOutput) -> Result<Tensor<3>> {
        logits_of(&output.logits)
    }
}

impl HookedModel for HookedEncoderDecoder {
    fn catalog(&self) -> &Arc<Catalog> {
        &self.points.catalog
    }

    fn device(&self) -> Device {
        self.weights.parts.device()
    }

    fn devices(&self) -> Vec<Device> {
        vec![self.device()]
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self.tokenizer.as_deref().ok_or(InputError::NoTokenizer)?)
    }

    fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        self.logits_of_stream(stream)
    }

    fn interventions(&self) -> Vec<String> {
        self.points.named_parts().collect()
    }
}

/// Catalog of the hook points of a model with this configuration.
pub fn catalog_of(config: &EncoderDecoderConfig) -> Arc<Catalog> {
    points_of(config).catalog
}
