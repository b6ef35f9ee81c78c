//! The decoder model: configuration, weights, tokenizer, and hook points.

use std::fmt::{self, Display as _};
use std::sync::Arc;

use burn::tensor::{DType as BurnDType, Device, Tensor};
use hooklens_hooks::{Catalog, DType, ModelIdentity};

use super::block::Block;
use super::hashed::Hashed;
use super::identity::{Identified, Identities};
use super::loaded::LoadedDecoder;
use super::model_weights::ModelWeights;
use super::named::Weights;
use super::output::Output;
use super::paging::Paging;
use super::points::points_of;
use super::report::LoadReport;
use super::summary::Summary;
use super::weights::DecoderWeights;
use crate::config::TransformerConfig;
use crate::device::{Placement, multiplies_narrow};
use crate::driver::{ForwardOptions, HookedModel, Input, logits_of, private};
use crate::error::{InputError, Result};
use crate::kv_cache::CacheModel;
use crate::points::Points;
use crate::tokens::Tokenizer;

/// A decoder whose internal activations all have names, and can be read and changed.
///
/// ```
/// use hooklens::prelude::*;
///
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("red fox blue red fox")?;
/// let (logits, cache) = model.run_with_cache(&tokens, "blocks.*.attn.hook_pattern")?;
/// let pattern = cache.get(hook::pattern(1))?; // [batch, head, query, key]
/// assert_eq!(pattern.dims()[2], logits.dims()[1]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone)]
pub struct HookedTransformer {
    pub(crate) weights: Weights,
    pub(crate) config: Arc<TransformerConfig>,
    pub(crate) points: Arc<Points>,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    /// End-of-sequence tokens from the model's files.
    ends: Arc<[u32]>,
    /// Beginning-of-sequence token from the model's files.
    begins: Option<u32>,
    pub(crate) report: Arc<LoadReport>,
    /// Whether the model computes in `f32` although its embedding is 16-bit.
    widens: bool,
    /// Paging of the blocks, if they don't fit into memory.
    paging: Option<Arc<Paging>>,
    pub(crate) identities: Arc<Identities>,
}

impl fmt::Debug for HookedTransformer {
    /// Formats a one-line summary: name, family, sizes, element type and devices.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, stacks) = (&*self.report, &[("", &*self.config)]);
        let (dtype, devices) = (self.compute_type(), self.devices());
        Summary { kind: "HookedTransformer", report, stacks, dtype, devices }.fmt(f)
    }
}

impl From<LoadedDecoder> for HookedTransformer {
    fn from(loaded: LoadedDecoder) -> Self {
        let LoadedDecoder { config, weights, tokenizer, eos_tokens, bos_token, report, dtype, paging } = loaded;
        Self {
            points: Arc::new(points_of(&config)),
            widens: weights.embed.dtype() != dtype.burn(),
            identities: Identities::of(&weights),
            weights: Weights { parts: weights },
            config: Arc::new(config),
            tokenizer: tokenizer.map(Arc::new),
            ends: eos_tokens.into(),
            begins: bos_token,
            report: Arc::new(report),
            paging: paging.map(Arc::new),
        }
    }
}

impl ModelWeights for HookedTransformer {
    type Parts = DecoderWeights;

    fn weights(&self) -> &Weights<DecoderWeights> {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut Weights<DecoderWeights> {
        &mut self.weights
    }

    fn map_weights(self, change: impl FnOnce(Weights<DecoderWeights>) -> Weights<DecoderWeights>) -> Self {
        Self { weights: change(self.weights), ..self }
    }

    fn fingerprint(&self) -> Result<String> {
        self.hash(Hashed::default())
    }

    fn load_report(&self) -> &LoadReport {
        &self.report
    }
}

impl HookedTransformer {
    /// End-of-sequence tokens, each of which stops generation: `eos_token_id` from `generation_config.json`, or else
    /// from `config.json` (for a GGUF file, the end-of-text, end-of-turn, and end-of-message tokens), or else the
    /// tokenizer's.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("../../tests/fixtures/llama")?;
    /// assert_eq!(model.eos_tokens(), [0]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn eos_tokens(&self) -> Vec<u32> {
        match &self.ends[..] {
            [] => self.tokenizer.as_ref().and_then(|own| own.eos()).into_iter().collect(),
            ends => ends.to_vec(),
        }
    }

    /// The beginning-of-sequence token: the tokenizer's, or, for a model without a tokenizer, `bos_token_id` from
    /// `generation_config.json` or `config.json`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.bos_token(), Some(0));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn bos_token(&self) -> Option<u32> {
        match &self.tokenizer {
            Some(tokenizer) => tokenizer.bos(),
            None => self.begins,
        }
    }

    /// Paging of the blocks, if they don't fit into memory.
    pub(crate) fn paging(&self) -> Option<&Paging> {
        self.paging.as_deref()
    }

    /// The model's configuration.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!((model.config().n_layers(), model.config().n_heads(), model.config().d_head()), (4, 4, 16));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Element type that the model computes in; activations and logits have this type.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.dtype(), DType::F32);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn dtype(&self) -> DType {
        let ours = [DType::F64, DType::BF16, DType::F16];
        let compute = self.compute_type();
        ours.into_iter().find(|ours| ours.burn() == compute).unwrap_or_default()
    }

    /// [`HookedTransformer::dtype`] as a Burn type.
    pub(crate) fn compute_type(&self) -> BurnDType {
        match self.weights.parts.embed.dtype() {
            BurnDType::F16 | BurnDType::BF16 if self.widens => BurnDType::F32,
            own => own,
        }
    }

    /// Moves the model to these devices, spreading its blocks over them as in
    /// `LoadOptions::devices`. An empty list leaves the model unchanged.
    ///
    /// On a device with autodiff, the weights become parameters that collect gradients; on one without, they become
    /// plain tensors, which generate and record at full speed. Weights that stay on the same device are not copied.
    ///
    /// Quantized weights are dequantized unless they stay where they are. If the model rounded the inputs of
    /// products, it no longer does unless the weights stay where they are, and the result counts as a different model.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?.to_devices(&[Device::flex().autodiff()]);
    /// let gradients = model.loss("When Mary and John")?.backward();
    /// let by_values = model.weights().get::<2>("blocks.2.attn.W_V")?.grad(&gradients); // [d_model, head * d_head]
    /// assert_eq!(by_values.map(|gradient| gradient.dims()), Some([64, 64]));
    /// let plain = model.to_devices(&[Device::flex()]);
    /// assert!(!plain.loss("When Mary and John")?.is_tracked());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn to_devices(mut self, devices: &[Device]) -> Self {
        let Some(placement) = Placement::over(devices) else { return self };
        let rounds_inputs = self.weights.parts.rounds_inputs();
        let as_made = self.identities.are_as_made(&self.weights.parts) && !rounds_inputs;
        if rounds_inputs || self.weights.parts.any_blocks() {
            if placement.devices().iter().all(|device| *device == self.device() && multiplies_narrow(device)) {
                return self;
            }
            if rounds_inputs {
                Arc::make_mut(&mut self.report).rounding.clear();
            }
            self.weights.parts = self.weights.parts.widened();
        }
        let n_layers = self.weights.parts.blocks.len();
        let of_layer = |layer| placement.of_layer(layer, n_layers).clone();
        // On other devices, matrix products do not widen 16-bit weights.
        if !placement.devices().iter().all(multiplies_narrow) {
            let dtype = self.compute_type();
            self.weights.parts = self.weights.parts.in_type(dtype);
        }
        self.weights.parts = self.weights.parts.placed(placement.first(), of_layer, placement.last());
        self.identities = self.identities.converted(as_made, &self.weights.parts);
        self
    }

    /// Replaces the model's tokenizer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let config = TransformerConfig::new(1, 16, 2, 63, 32).with_default_prepend_bos(true);
    /// let random = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let random = random.with_tokenizer(model.tokenizer()?.clone());
    /// assert_eq!(random.forward("red fox")?.dims(), [1, 3, 63]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn with_tokenizer(mut self, tokenizer: Tokenizer) -> Self {
        self.tokenizer = Some(Arc::new(tokenizer));
        self
    }
}

impl private::Sealed for HookedTransformer {}

impl private::Spliceable for HookedTransformer {
    fn points(&self) -> &Points {
        &self.points
    }

    fn with_points(&self, points: Points) -> Self {
        Self { points: Arc::new(points), ..self.clone() }
    }

    fn block_shape(&self) -> &TransformerConfig {
        &self.config
    }

    fn processed_model(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

impl private::RunModel for HookedTransformer {
    type Input = Input;
    type Output = Output;
    type Scored = Tensor<3>;

    fn run_checked(&self, input: Input, options: ForwardOptions<'_>) -> Result<Output> {
        self.checked_run(input, options)
    }

    fn scored(output: &Output) -> Result<Tensor<3>> {
        logits_of(&output.logits)
    }
}

impl HookedModel for HookedTransformer {
    fn catalog(&self) -> &Arc<Catalog> {
        &self.points.catalog
    }

    fn device(&self) -> Device {
        self.weights.parts.device()
    }

    fn devices(&self) -> Vec<Device> {
        let mut devices = vec![self.device()];
        let blocks = self.weights.parts.blocks.iter().map(Block::device);
        for device in blocks.chain([self.weights.parts.unembed.device()]) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
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

impl CacheModel for HookedTransformer {
    fn weights_hash(&self) -> Result<String> {
        self.fingerprint()
    }

    fn layer_device(&self, layer: usize) -> Device {
        self.weights.parts.blocks[layer].device()
    }

    fn model_identity(&self) -> Option<Arc<ModelIdentity>> {
        Some(self.identity())
    }
}
