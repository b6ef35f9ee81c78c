//! Bidirectional encoders such as BERT. They are hooked, recorded and run like decoders.

mod config;
mod fingerprint;
mod forward;
mod input;
mod loaded;
mod names;
mod points;
mod sentences;
mod tokens;
mod unembed;
mod weights;

use std::fmt::{self, Display as _};
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::Catalog;

pub use config::{EncoderConfig, RelativePositions};
pub use forward::{EncoderOutput, check_length};
pub use input::EncoderInput;
pub use loaded::LoadedEncoder;
pub use sentences::{Pooling, SentenceEmbedding, sentence_embedding_of};
pub use tokens::EncoderTokens;
pub(crate) use unembed::check_width;
pub use weights::{EncoderBlock, EncoderEmbed, EncoderWeights, MlmHead, OutputHeads, RelativeWeights};

use crate::config::{ConfigError, TransformerConfig};
use crate::driver::{ForwardOptions, HookedModel, Logits, private};
use crate::error::{InputError, Result};
use crate::model::{Hashed, Identities, LoadReport, ModelWeights, Summary, Weights, hash_of};
use crate::points::Points;
use crate::tokens::Tokenizer;
use points::points_of;

/// Hooked encoder: every internal activation has a name and can be read and edited. Supports BERT, RoBERTa, ModernBERT,
/// DeBERTa, ESM-2, T5's encoder alone, MiniLM and other sentence encoders.
///
/// Hook points have the names of TransformerLens's `HookedEncoder`: `embed.hook_embed`, `blocks.3.attn.hook_pattern`,
/// `blocks.3.hook_normalized_resid_post`, `mlm_head.ln.hook_normalized`, ...
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let recorded = model.run(vec![vec![2, 5, 9, 3]], Record::all())?.cache;
/// let stream = recorded.get(hook::resid_pre(-1))?; // [batch, pos, d_model]
/// assert_eq!(stream.dims(), [1, 4, model.config().d_model()]);
/// let last: Tensor<3> = recorded.get(("normalized_resid_post", -1))?;
/// let gap = model.encode(vec![vec![2, 5, 9, 3]])? - last;
/// assert!(gap.abs().max().into_scalar::<f32>() < 1e-5);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone)]
pub struct HookedEncoder {
    weights: Weights<EncoderWeights>,
    config: Arc<EncoderConfig>,
    /// The part of the configuration that attention and MLP use.
    stack: Arc<TransformerConfig>,
    pub(crate) points: Arc<Points>,
    tokenizer: Option<Arc<Tokenizer>>,
    sentences: std::result::Result<SentenceEmbedding, String>,
    report: Arc<LoadReport>,
    identities: Arc<Identities>,
}

impl fmt::Debug for HookedEncoder {
    /// Formats a one-line summary: name, family, sizes, element type and device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, stacks) = (&*self.report, &[("", &*self.stack)]);
        let (dtype, devices) = (self.weights.parts.embed.tokens.val().dtype(), self.devices());
        Summary { kind: "HookedEncoder", report, stacks, dtype, devices }.fmt(f)
    }
}

impl TryFrom<LoadedEncoder> for HookedEncoder {
    type Error = ConfigError;

    fn try_from(loaded: LoadedEncoder) -> std::result::Result<Self, ConfigError> {
        let LoadedEncoder { config, weights, tokenizer, sentences, report } = loaded;
        Ok(Self {
            points: Arc::new(points_of(&config, weights.output_heads())),
            stack: Arc::new(config.stack()?),
            identities: Identities::of(&weights),
            weights: Weights { parts: weights },
            config: Arc::new(config),
            tokenizer: tokenizer.map(Arc::new),
            sentences,
            report: Arc::new(report),
        })
    }
}

impl ModelWeights for HookedEncoder {
    type Parts = EncoderWeights;

    fn weights(&self) -> &Weights<EncoderWeights> {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut Weights<EncoderWeights> {
        &mut self.weights
    }

    fn map_weights(self, change: impl FnOnce(Weights<EncoderWeights>) -> Weights<EncoderWeights>) -> Self {
        Self { weights: change(self.weights), ..self }
    }

    fn fingerprint(&self) -> Result<String> {
        hash_of(&*self.config, &self.weights.parts, Hashed::default())
    }

    fn load_report(&self) -> &LoadReport {
        &self.report
    }
}

impl HookedEncoder {
    /// Configuration of the blocks: their sizes, norms and activation function. Positions, embeddings and output heads
    /// are not part of it.
    ///
    /// ```
    /// # use hooklens::FromPretrained;
    /// # use hooklens::encoder::HookedEncoder;
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// assert_eq!((model.config().n_layers(), model.config().d_model()), (2, 24));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn config(&self) -> &TransformerConfig {
        &self.stack
    }
}

/// The whole configuration of a model, with positions and embeddings.
pub fn config_of(model: &HookedEncoder) -> &EncoderConfig {
    &model.config
}

impl private::Sealed for HookedEncoder {}

impl private::Spliceable for HookedEncoder {
    fn points(&self) -> &Points {
        &self.points
    }

    fn with_points(&self, points: Points) -> Self {
        Self { points: Arc::new(points), ..self.clone() }
    }

    fn block_shape(&self) -> &TransformerConfig {
        &self.stack
    }
}

impl private::RunModel for HookedEncoder {
    type Input = EncoderInput;
    type Output = EncoderOutput;
    type Scored = EncoderOutput;

    const NEEDS_LOGITS: bool = false;

    /// Runs every output head that the model has, or none if no logits are requested.
    fn run_checked(&self, input: EncoderInput, options: ForwardOptions<'_>) -> Result<EncoderOutput> {
        let tokens = self.to_tokens(input)?;
        let wanted = if options.logits == Logits::None { OutputHeads::NONE } else { self.weights.parts.output_heads() };
        self.run_tokens(&tokens, options, wanted)
    }

    fn scored(output: &EncoderOutput) -> Result<EncoderOutput> {
        Ok(output.clone())
    }
}

impl HookedModel for HookedEncoder {
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

/// Catalog of the hook points of an encoder with these output heads.
pub fn catalog_of(config: &EncoderConfig, heads: OutputHeads) -> Arc<Catalog> {
    points_of(config, heads).catalog
}
