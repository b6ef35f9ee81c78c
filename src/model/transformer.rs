//! The model a user holds.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{ActivationCache, Catalog, Hook, Record};

use super::block::Block;
use super::input::Input;
use super::options::{ForwardOptions, Logits, Output};
use super::points::Points;
use super::scope::Hooked;
use super::weights::Weights;
use crate::config::TransformerConfig;
use crate::device::Placement;
use crate::error::{InputError, Result};
use crate::kv_cache::KeyValueCache;
use crate::loading::LoadReport;
use crate::tokens::{Tokenizer, Tokens};

/// A transformer whose every internal activation has a name, and can be read and changed.
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
    /// The weights; a Burn module.
    pub weights: Weights,
    pub(crate) config: Arc<TransformerConfig>,
    pub(crate) points: Arc<Points>,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) report: Arc<LoadReport>,
}

impl HookedTransformer {
    /// A model of these weights. They must fit the configuration, as those made by the loader
    /// or by [`HookedTransformer::random`] do.
    pub(crate) fn assemble(
        config: TransformerConfig,
        weights: Weights,
        tokenizer: Option<Tokenizer>,
        report: LoadReport,
    ) -> Self {
        let points = Arc::new(Points::new(&config));
        let (config, report) = (Arc::new(config), Arc::new(report));
        Self { weights, config, points, tokenizer: tokenizer.map(Arc::new), report }
    }

    /// Shape and choices of the model.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!((model.config().n_layers, model.config().n_heads, model.config().d_head), (4, 4, 16));
    /// assert_eq!(model.devices(), [model.device()]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Where the weights live; of a model spread over several devices, the first, where its embedding is.
    pub fn device(&self) -> Device {
        self.weights.device()
    }

    /// Every device the weights live on, in the order of the layers.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices = vec![self.device()];
        let blocks = self.weights.blocks.iter().map(Block::device);
        for device in blocks.chain([self.weights.unembed.weight.val().device()]) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    /// The model moved to these devices, its blocks spread over them as by
    /// [`LoadOptions::devices`](crate::LoadOptions::devices); of no devices, as it was.
    ///
    /// On a device with autodiff the weights are parameters that gradients are kept for; on one without they are plain
    /// again, to generate or record at full speed. On the same device neither copies them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?.to_devices(&[Device::flex().autodiff()]);
    /// let gradients = model.loss("When Mary and John", ())?.backward();
    /// let by_values = model.weights.blocks[2].attn.v.weight.grad(&gradients); // [d_model, head * d_head]
    /// assert_eq!(by_values.map(|gradient| gradient.dims()), Some([64, 64]));
    /// let plain = model.to_devices(&[Device::flex()]);
    /// assert!(!plain.loss("When Mary and John", ())?.is_tracked());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn to_devices(mut self, devices: &[Device]) -> Self {
        let Some(placement) = Placement::over(devices) else { return self };
        let n_layers = self.weights.blocks.len();
        let of_layer = |layer| placement.of_layer(layer, n_layers).clone();
        self.weights = self.weights.placed(placement.first(), of_layer, placement.last());
        self
    }

    /// An error if the weights are not all in one place.
    pub(crate) fn check_one_place(&self, what: &'static str) -> Result<(), InputError> {
        if self.devices().len() == 1 { Ok(()) } else { Err(InputError::Spread { what }) }
    }

    /// Every point the model can fire, in firing order.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let names: Vec<&str> = model.catalog().points().iter().map(|point| &*point.name).collect();
    /// assert_eq!(names[..3], ["hook_tokens", "hook_embed", "hook_pos_embed"]); // in firing order
    /// // Points of other models, and why this one lacks them.
    /// let told = ("embed.ln.hook_scale", "its embedding has no norm");
    /// assert!(model.catalog().absent().any(|absent| absent == told));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.points.catalog
    }

    /// What loading did with each tensor of the files.
    pub fn load_report(&self) -> &LoadReport {
        &self.report
    }

    /// The tokenizer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.tokenizer()?.encode("red fox")?, [1, 9]);
    /// let random = HookedTransformer::random(TransformerConfig::new(1, 16, 2, 20, 8), 0, &Device::flex())?;
    /// assert!(random.tokenizer().is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NoTokenizer`] if the model came without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self.tokenizer.as_deref().ok_or(InputError::NoTokenizer)?)
    }

    /// Gives the model another tokenizer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let config = TransformerConfig { default_prepend_bos: true, ..TransformerConfig::new(1, 16, 2, 63, 32) };
    /// let random = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let random = random.with_tokenizer(model.tokenizer()?.clone());
    /// assert_eq!(random.forward("red fox", ())?.dims(), [1, 3, 63]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn with_tokenizer(mut self, tokenizer: Tokenizer) -> Self {
        self.tokenizer = Some(Arc::new(tokenizer));
        self
    }

    /// Runs the model and gives the logits, or the residual stream if told where to stop.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_vocab_out]`; `[batch, 1, d_vocab_out]` for [`Logits::Last`];
    ///   `[batch, pos, d_model]` with `stop_at_layer`
    ///
    /// # Errors
    /// Bad input or options, and whatever a hook reports.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let logits = model.forward("red fox blue red", ())?;
    /// let last = model.forward("red fox blue red", ForwardOptions::new().logits(Logits::Last))?;
    /// assert_eq!(last.dims(), [1, 1, logits.dims()[2]]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn forward<'h>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Tensor<3>> {
        let options = options.into();
        options.check_gives_output()?;
        main_output(self.run(input, options)?)
    }

    /// Mean cross-entropy of predicting each next token, `[1]`, in nats; padding is not counted.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let uniform = (63f32).ln(); // of 63 tokens, none favoured
    /// let loss = model.loss("red fox tea red fox tea red fox tea", ())?.into_scalar::<f32>();
    /// assert!(loss < uniform, "{loss}"); // what repeats is foreseen
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::forward`].
    pub fn loss<'h>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Tensor<1>> {
        only_loss(self.run(input, options.into().loss())?)
    }

    /// Runs the model and records activations.
    ///
    /// # Errors
    /// As [`HookedTransformer::forward`]; an unknown name or a pattern without a match is one
    /// before anything runs.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let (logits, cache) = model.run_with_cache("red fox blue red", Record::all())?;
    /// let resid = cache.get(hook::resid_post(-1))?;
    /// assert_eq!(resid.dims()[..2], logits.dims()[..2]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn run_with_cache(
        &self,
        input: impl Into<Input>,
        record: impl Into<Record>,
    ) -> Result<(Tensor<3>, ActivationCache)> {
        logits_and_cache(self.run(input, ForwardOptions::new().record(record))?)
    }

    /// Records activations and computes nothing after the last one asked for.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary", ["pattern0", "resid_post1"])?; // layers 2 and 3 are not run
    /// let names: Vec<&str> = cache.names().collect();
    /// assert_eq!(names, ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::run_with_cache`].
    pub fn record(&self, input: impl Into<Input>, record: impl Into<Record>) -> Result<ActivationCache> {
        Ok(self.run(input, ForwardOptions::new().logits(Logits::None).record(record))?.cache)
    }

    /// Runs the model with hooks, and gives the logits. The hooks end with the run.
    ///
    /// # Errors
    /// As [`HookedTransformer::forward`].
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut widths = vec![];
    /// let ablated = model.run_with_hooks("red fox blue red", [
    ///     hook::z(0).edit(|z, _| z.zeros_like()),
    ///     hook::pattern(1).read(|pattern, _| widths.push(pattern.dims()[3])),
    /// ])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn run_with_hooks<'h>(
        &self,
        input: impl Into<Input>,
        hooks: impl IntoIterator<Item = Hook<'h>>,
    ) -> Result<Tensor<3>> {
        self.forward(input, ForwardOptions::new().hooks(hooks))
    }

    /// A view of the model in which every run has these hooks. They are gone when it is dropped;
    /// the model itself never changes.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::attn_out(0).edit(|x, _| x.zeros_like())]);
    /// let ablated = hooked.forward("red fox", ())?;
    /// let (_, cache) = hooked.run_with_cache("red fox", "blocks.1.*")?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn hooks<'m, 'h>(&'m self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Hooked<'m, 'h> {
        Hooked::new(self, hooks)
    }

    /// Runs the model on what comes first, and gives the cache to go on from.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let king = model.to_single_token("king")?;
    /// let next = model.forward([king], ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!((next.dims()[..2].to_vec(), cache.len()), (vec![1, 1], 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::forward`].
    pub fn prefill(&self, input: impl Into<Input>) -> Result<KeyValueCache> {
        let tokens = self.token_input(input.into())?;
        let mut cache = KeyValueCache::new(&self.config, tokens.shape()[0]);
        self.run(tokens, ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache))?;
        Ok(cache)
    }

    /// The tokens of an input that is no residual stream, checked.
    pub(crate) fn token_input(&self, input: Input) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| self.to_tokens(texts))?;
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    /// Runs the model; everything a run can do is an option.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun")?;
    /// let star = model.to_single_token("star")?;
    /// let options = ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache).record("*hook_pattern");
    /// let output = model.run([star], options)?;
    /// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 1, 63]));
    /// assert_eq!(output.cache.get(hook::pattern(0))?.dims(), [1, 4, 1, 5]); // it sees what came before
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Bad input or options, and whatever a hook reports.
    pub fn run<'h>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Output> {
        self.checked_run(input.into(), options.into())
    }
}

pub(crate) fn main_output(output: Output) -> Result<Tensor<3>> {
    let either = output.residual.or(output.logits);
    Ok(either.ok_or(InputError::Options("a forward without logits gives nothing; use `record` or `run`"))?)
}

pub(crate) fn only_loss(output: Output) -> Result<Tensor<1>> {
    Ok(output.loss.ok_or(InputError::Options("a run that stops before the logits has no loss"))?)
}

pub(crate) fn logits_and_cache(output: Output) -> Result<(Tensor<3>, ActivationCache)> {
    let logits = output.logits.ok_or(InputError::Options("no logits were asked for; use `record` or `run`"))?;
    Ok((logits, output.cache))
}
