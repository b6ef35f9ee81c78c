//! Encoder-decoder models such as Marian, BART, T5 and T5Gemma: two stacks of blocks, the second attending to the first.

mod block;
mod cache;
mod config;
mod fingerprint;
mod forward;
mod generate;
mod input;
mod points;
mod positions;
mod rules;
mod sinusoids;
mod unembed;
mod weights;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Catalog, PointId, PointInfo, Segment};

pub use cache::DecoderCache;
pub use config::{EncoderDecoderConfig, StackAttention};
pub use forward::{Encoded, EncoderDecoderOutput};
pub use input::EncoderDecoderInput;
pub use positions::{PositionTable, StackPositions};
pub use rules::TokenRules;
pub use sinusoids::Sinusoids;
pub use weights::{DecoderBlock, EncoderBlock, EncoderDecoderWeights};

use crate::config::TransformerConfig;
use crate::driver::{ForwardOptions, HookedModel, Input, logits_of, private};
use crate::error::{InputError, Result};
use crate::model::{Identities, LoadReport};
use crate::points::{Points, Site};
use crate::tokens::{PaddingSide, Texts, Tokenizer, Tokens};
use points::{CROSS, points_of};

/// An encoder with a decoder whose every internal activation has a name, and can be read and changed: T5, Marian,
/// BART, NLLB.
///
/// Points have TransformerLens's `HookedEncoderDecoder` names: `encoder.3.attn.hook_pattern`,
/// `decoder.0.cross_attn.hook_pattern` (`[batch, head, decoder_pos, encoder_pos]`), ...
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let (input, written) = (vec![vec![5, 6, 7, 1]], vec![vec![model.config().decoder_start_token]]);
/// let cache = model.run((input, written), Record::all())?.cache;
/// let (there, here): (Tensor<3>, Tensor<3>) =
///     (cache.get("encoder.0.hook_resid_pre")?, cache.get("decoder.0.hook_resid_pre")?);
/// assert_eq!((there.dims()[1], here.dims()[1]), (4, 1)); // two streams
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct HookedEncoderDecoder {
    /// The weights; a Burn module.
    pub weights: EncoderDecoderWeights,
    config: Arc<EncoderDecoderConfig>,
    /// Each stack's configuration, in the form its blocks read.
    encoder_stack: Arc<TransformerConfig>,
    decoder_stack: Arc<TransformerConfig>,
    pub points: Arc<Points>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// The tokens that end a text, as the model's files say.
    ends: Arc<[u32]>,
    report: Arc<LoadReport>,
    identities: Arc<Identities>,
}

impl HookedEncoderDecoder {
    pub fn assemble(
        config: EncoderDecoderConfig,
        weights: EncoderDecoderWeights,
        tokenizer: Option<Tokenizer>,
        report: LoadReport,
    ) -> Self {
        Self {
            identities: Identities::of(&weights),
            weights,
            points: Arc::new(points_of(&config)),
            encoder_stack: Arc::new(config.stack(false)),
            decoder_stack: Arc::new(config.stack(true)),
            config: Arc::new(config),
            tokenizer: tokenizer.map(Arc::new),
            ends: Arc::default(),
            report: Arc::new(report),
        }
    }

    /// The model with tokens that end a text, as its files say.
    pub fn with_eos_tokens(self, tokens: Vec<u32>) -> Self {
        Self { ends: tokens.into(), ..self }
    }

    /// The tokens that end a text, each of which stops generation: `eos_token_id` of `generation_config.json`, else of
    /// `config.json`, else the tokenizer's own.
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

    /// Shape and choices of the model.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert_eq!((model.config().n_encoder_layers, model.config().n_decoder_layers), (2, 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn config(&self) -> &EncoderDecoderConfig {
        &self.config
    }

    /// Where the weights live.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert_eq!(model.device(), hooklens::default_device()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        self.weights.device()
    }

    /// What loading did with each tensor of the files.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// assert!(model.load_report().applied.iter().any(|name| name.starts_with("decoder.")));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn load_report(&self) -> &LoadReport {
        &self.report
    }

    /// Tokens of one or several texts, each with the tokenizer's own end of sequence, padded at the right.
    ///
    /// ```no_run
    /// use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("t5-small")?;
    /// let tokens = model.to_tokens(["translate English to German: Hello", "summarize: ..."])?;
    /// assert_eq!(tokens.real(0).last(), model.tokenizer()?.eos().as_ref()); // the tokenizer's own end
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// No tokenizer, no text, or a text the tokenizer refuses.
    pub fn to_tokens(&self, texts: impl Into<Texts>) -> Result<Tokens> {
        tokens_after(self.tokenizer()?, texts.into(), &[])
    }

    /// [`to_tokens`](HookedEncoderDecoder::to_tokens) of texts in another language than the tokenizer's default, where
    /// tokens tell the language: NLLB, mBART, M2M-100.
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
    /// As `to_tokens`; [`InputError::Setting`] for a language that is no token, or a tokenizer that adds none.
    pub fn to_tokens_of(&self, language: &str, texts: impl Into<Texts>) -> Result<Tokens> {
        let tokenizer = self.tokenizer()?;
        let setting = |allowed: &str| -> crate::error::Error {
            InputError::Setting { name: "language", given: language.into(), allowed: allowed.into() }.into()
        };
        let wanted = tokenizer.id(language).ok_or_else(|| setting("a token of the vocabulary"))?;
        // What is put around every text: a language, and the end.
        let around = tokenizer.encode_special("", None)?.0;
        let own = around.iter().find(|id| Some(**id) != tokenizer.eos());
        let own = *own.ok_or_else(|| setting("a model whose tokenizer marks the language"))?;
        let mut rows = Vec::new();
        for text in texts.into().0 {
            let mut row = tokenizer.encode_special(&text, None)?.0;
            let at = if row.first() == Some(&own) { Some(0) } else { row.iter().rposition(|id| *id == own) };
            row[at.ok_or_else(|| setting("a model whose tokenizer marks the language"))?] = wanted;
            rows.push(row);
        }
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        Ok(Tokens::padded(&rows, tokenizer.pad(), PaddingSide::Right)?)
    }

    /// The encoder's tokens and the decoder's: without an input for the latter, its start token.
    pub fn both_tokens(&self, input: EncoderDecoderInput) -> Result<(Tokens, Tokens)> {
        let read = self.token_input(input.encoder)?;
        let written = match input.decoder {
            Some(written) => self.written_input(written)?,
            None => Tokens::new(vec![vec![self.config.decoder_start_token]; read.shape()[0]])?,
        };
        let [encoder, decoder] = [&read, &written].map(|tokens| tokens.shape()[0]);
        if encoder != decoder {
            return Err(InputError::Rows { encoder, decoder }.into());
        }
        Ok((read, written))
    }

    /// Tokens that the decoder has written: its start token, and those of a text.
    pub fn written(&self, text: Option<&str>) -> Result<Vec<u32>> {
        let text = match text {
            Some(text) => self.tokenizer()?.target().encode(text)?,
            None => Vec::new(),
        };
        Ok([vec![self.config.decoder_start_token], text].concat())
    }

    /// Whether a point is in cross attention, of a layer that attends to the encoder.
    pub fn attends_to_encoder(&self, point: PointId) -> bool {
        let cross = self.points.stack(CROSS);
        let layers = 0..self.config.n_decoder_layers;
        let sites = [Site::AttnScores, Site::Pattern];
        layers.into_iter().any(|layer| sites.iter().any(|site| cross.at(layer, *site) == Some(point)))
    }

    /// What the encoder reads.
    fn token_input(&self, input: Input) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| self.to_tokens(texts))?;
        tokens.check(self.config.d_vocab)?;
        Ok(tokens)
    }

    /// What the decoder has written.
    fn written_input(&self, input: Input) -> Result<Tokens> {
        self.written_input_after(input, &[])
    }

    /// What the decoder writes after `held` tokens of each row: a text that goes on gets no special tokens.
    fn written_input_after(&self, input: Input, held: &[usize]) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| tokens_after(self.tokenizer()?.target(), texts.into(), held))?;
        tokens.check(self.config.d_decoder_vocab)?;
        Ok(tokens)
    }
}

/// Tokens of texts, padded at the right, each with the tokenizer's special tokens unless its row holds some already.
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

impl HookedModel for HookedEncoderDecoder {
    type Input = EncoderDecoderInput;
    type Output = EncoderDecoderOutput;
    type Scored = Tensor<3>;

    fn catalog(&self) -> &Arc<Catalog> {
        &self.points.catalog
    }

    fn devices(&self) -> Vec<Device> {
        vec![self.device()]
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self.tokenizer.as_deref().ok_or(InputError::NoTokenizer)?)
    }

    fn interventions(&self) -> Vec<String> {
        self.points.named_parts().collect()
    }

    fn run_checked(&self, input: EncoderDecoderInput, options: ForwardOptions<'_>) -> Result<EncoderDecoderOutput> {
        self.run_both(input, options)
    }

    fn scored(output: &EncoderDecoderOutput) -> Result<Tensor<3>> {
        logits_of(&output.logits)
    }
}

/// The points a model of this configuration can fire.
pub fn catalog_of(config: &EncoderDecoderConfig) -> Arc<Catalog> {
    points_of(config).catalog
}
