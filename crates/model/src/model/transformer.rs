//! The decoder model: configuration, weights, tokenizer, and hook points.

use std::sync::Arc;

use burn::tensor::{DType as BurnDType, Device, Tensor};
use hooklens_hooks::{Catalog, DType, ModelIdentity};

use super::block::Block;
use super::identity::Identities;
use super::mixer::Mixer;
use super::output::Output;
use super::paging::Paging;
use super::points::points_of;
use super::report::LoadReport;
use super::weights::Weights;
use crate::config::TransformerConfig;
use crate::device::{Placement, multiplies_narrow};
use crate::driver::{ForwardOptions, HookedModel, Input, logits_of, private};
use crate::error::{InputError, Result};
use crate::kv_cache::CacheModel;
use crate::points::Points;
use crate::tokens::{Tokenizer, Tokens};

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
#[derive(Debug, Clone)]
pub struct HookedTransformer {
    /// The weights, as a Burn module. Matrices may have a narrower type than the model computes in
    /// ([`HookedTransformer::dtype`]).
    pub weights: Weights,
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

impl HookedTransformer {
    /// Creates a model from weights, which must match the configuration, like those from the loader or from
    /// [`HookedTransformer::random`].
    pub fn assemble(
        config: TransformerConfig,
        weights: Weights,
        tokenizer: Option<Tokenizer>,
        report: LoadReport,
        dtype: DType,
    ) -> Self {
        let points = Arc::new(points_of(&config));
        let widens = weights.embed.dtype() != dtype.burn();
        let (config, report) = (Arc::new(config), Arc::new(report));
        let (tokenizer, identities) = (tokenizer.map(Arc::new), Identities::of(&weights));
        let (ends, begins) = Default::default();
        Self { weights, config, points, tokenizer, ends, begins, report, widens, paging: None, identities }
    }

    /// Sets the end-of-sequence tokens from the model's files.
    pub fn with_eos_tokens(self, tokens: Vec<u32>) -> Self {
        Self { ends: tokens.into(), ..self }
    }

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

    /// Sets the beginning-of-sequence token from the model's files.
    pub fn with_bos_token(self, token: Option<u32>) -> Self {
        Self { begins: token, ..self }
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

    /// Sets the paging of blocks that are read from files when they run.
    pub fn paged(self, paging: Option<Paging>) -> Self {
        Self { paging: paging.map(Arc::new), ..self }
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
    /// assert_eq!((model.config().n_layers(), model.config().n_heads, model.config().d_head()), (4, 4, 16));
    /// assert_eq!(model.devices(), [model.device()]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Element type that the model computes in, and thus of its activations and logits.
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
    pub fn compute_type(&self) -> BurnDType {
        match self.weights.embed.dtype() {
            BurnDType::F16 | BurnDType::BF16 if self.widens => BurnDType::F32,
            own => own,
        }
    }

    /// Device of the weights; for a model spread over several devices, the first, which holds the embedding.
    pub fn device(&self) -> Device {
        self.weights.device()
    }

    /// Moves the model to these devices, spreading its blocks over them as in
    /// `LoadOptions::devices`. An empty list leaves the model unchanged.
    ///
    /// On a device with autodiff, the weights become parameters that collect gradients; on one without, they become
    /// plain tensors, which generate and record at full speed. Weights that stay on the same device are not copied.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?.to_devices(&[Device::flex().autodiff()]);
    /// let gradients = model.loss("When Mary and John")?.backward();
    /// let by_values = model.weights.blocks[2].attn().unwrap().v.weight.grad(&gradients); // [d_model, head * d_head]
    /// assert_eq!(by_values.map(|gradient| gradient.dims()), Some([64, 64]));
    /// let plain = model.to_devices(&[Device::flex()]);
    /// assert!(!plain.loss("When Mary and John")?.is_tracked());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn to_devices(mut self, devices: &[Device]) -> Self {
        let Some(placement) = Placement::over(devices) else { return self };
        let as_made = self.identities.are_as_made(&self.weights);
        if self.weights.any_blocks() {
            if placement.devices().iter().all(|device| *device == self.device() && multiplies_narrow(device)) {
                return self;
            }
            self.weights = self.weights.widened();
        }
        let n_layers = self.weights.blocks.len();
        let of_layer = |layer| placement.of_layer(layer, n_layers).clone();
        // Other devices have no kernels that widen their inputs.
        if !placement.devices().iter().all(multiplies_narrow) {
            let dtype = self.compute_type();
            self.weights = self.weights.in_type(dtype);
        }
        self.weights = self.weights.placed(placement.first(), of_layer, placement.last());
        self.identities = self.identities.converted(as_made, &self.weights);
        self
    }

    /// Returns an error if the weights are on several devices.
    pub fn check_one_place(&self, what: &'static str) -> Result<(), InputError> {
        if self.devices().len() == 1 { Ok(()) } else { Err(InputError::Spread { what }) }
    }

    /// Returns an error if the residual stream is not the sum of what was written to it.
    pub fn check_sums(&self, what: &'static str) -> Result<(), InputError> {
        if self.config.stream_is_normalized() { Err(InputError::NormalizedStream { what }) } else { Ok(()) }
    }

    /// Returns an error if the residual stream has contributions other than attention and MLP outputs.
    pub fn check_plain_writes(&self, what: &'static str) -> Result<(), InputError> {
        let c = &self.config;
        let parts = [
            (c.per_layer_inputs.is_some(), "per-layer inputs (`per_layer_inputs`)"),
            (c.layer_scalars, "layers that scale the residual stream (`layer_scalars`)"),
            (c.experts().is_some_and(|experts| experts.own_norms), "experts with their own norms (`experts`)"),
        ];
        match parts.into_iter().find(|(there, _)| *there) {
            Some((_, with)) => Err(InputError::NotDefined { what, with }),
            None => Ok(()),
        }
    }

    /// Like [`Self::check_plain_writes`], but also returns an error if a layer has no attention, has another mixer
    /// beside it, or reuses the keys of an earlier one, if values are normalized, or if head outputs are gated or weighted by a router.
    pub fn check_plain_layers(&self, what: &'static str) -> Result<(), InputError> {
        self.check_plain_writes(what)?;
        self.check_attends(what)?;
        if self.weights.blocks.iter().any(|block| matches!(block.mixer, Some(Mixer::AttentionAndMamba2(_)))) {
            return Err(InputError::NotDefined { what, with: "a Mamba 2 state space beside attention" });
        }
        if self.config.attn_gates {
            return Err(InputError::NotDefined { what, with: "gated head outputs (`attn_gates`)" });
        }
        if self.config.attn_experts.is_some() {
            return Err(InputError::NotDefined { what, with: "attention experts (`attn_experts`)" });
        }
        let shared = self.config.shares_keys();
        match (shared, self.config.qk_norm.is_some_and(|norm| norm.values)) {
            (true, _) => Err(InputError::NotDefined {
                what,
                with: "layers that reuse the keys of earlier layers (`shared_keys`)",
            }),
            (_, true) => Err(InputError::NotDefined { what, with: "normalized values (`qk_norm`)" }),
            _ => Ok(()),
        }
    }

    /// Returns an error if a layer has no attention.
    pub fn check_attends(&self, what: &'static str) -> Result<(), InputError> {
        match (0..self.config.n_layers()).find(|layer| !self.config.attends(*layer)) {
            Some(layer) => Err(InputError::NoAttention { what, layer }),
            None => Ok(()),
        }
    }

    /// Returns an error if there is no unembedding.
    pub fn check_head(&self) -> Result<(), InputError> {
        if self.config.d_vocab_out == 0 { Err(InputError::NoHead { head: "unembedding" }) } else { Ok(()) }
    }

    /// Returns an error if queries, keys, and values are clipped.
    pub fn check_unclipped(&self, what: &'static str) -> Result<(), InputError> {
        if self.config.qkv_clip.is_some() { Err(InputError::Clipped { what }) } else { Ok(()) }
    }

    /// The load report: how each tensor of the files was used.
    pub fn load_report(&self) -> &LoadReport {
        &self.report
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

    /// Converts an input to validated tokens; a residual stream is an error.
    pub fn token_input(&self, input: Input) -> Result<Tokens> {
        self.token_input_after(input, &[])
    }

    /// Like [`token_input`](Self::token_input), for an input that follows `held` cached tokens of each row (or one
    /// number for all).
    pub fn token_input_after(&self, input: Input, held: &[usize]) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| self.to_tokens_after(texts, held))?;
        self.check_tokens(&tokens)?;
        Ok(tokens)
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

impl HookedModel for HookedTransformer {
    type Input = Input;
    type Output = Output;
    type Scored = Tensor<3>;

    fn catalog(&self) -> &Arc<Catalog> {
        &self.points.catalog
    }

    fn devices(&self) -> Vec<Device> {
        let mut devices = vec![self.device()];
        let blocks = self.weights.blocks.iter().map(Block::device);
        for device in blocks.chain([self.weights.unembed.device()]) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self.tokenizer.as_deref().ok_or(InputError::NoTokenizer)?)
    }

    fn interventions(&self) -> Vec<String> {
        self.points.named_parts().collect()
    }

    fn run_checked(&self, input: Input, options: ForwardOptions<'_>) -> Result<Output> {
        self.checked_run(input, options)
    }

    fn scored(output: &Output) -> Result<Tensor<3>> {
        logits_of(&output.logits)
    }
}

impl CacheModel for HookedTransformer {
    fn weights_hash(&self) -> Result<String> {
        self.fingerprint()
    }

    fn layer_device(&self, layer: usize) -> Device {
        self.weights.blocks[layer].device()
    }

    fn model_identity(&self) -> Option<Arc<ModelIdentity>> {
        Some(self.identity())
    }
}
