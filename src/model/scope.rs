//! Hooks that stay for several runs.

use std::cell::RefCell;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use super::input::Input;
use super::options::{ForwardOptions, Logits, Output};
use super::transformer::{HookedTransformer, logits_and_cache, main_output, only_loss};
use crate::error::{InputError, Result};
use crate::kv_cache::KeyValueCache;

/// A model together with hooks: a scope that is a value.
///
/// Runs made through it have the hooks, runs made on the model itself don't. Dropping it, in
/// whatever way, is all it takes to remove the hooks. Scopes nest: see [`Hooked::hooks`].
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let hooked = model.hooks([hook::z(1).edit(|z, _| z.zeros_like())]);
/// let text = "red fox red fox red fox";
/// let [with, without] = [hooked.loss(text, ())?, model.loss(text, ())?];
/// assert!((with - without).into_scalar::<f32>() > 0.0); // what repeats is no longer foreseen
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the hooks act on runs made through this value, not on the model"]
pub struct Hooked<'m, 'h> {
    model: &'m HookedTransformer,
    hooks: RefCell<Vec<Hook<'h>>>,
}

impl<'m, 'h> Hooked<'m, 'h> {
    pub(crate) fn new(model: &'m HookedTransformer, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        Self { model, hooks: RefCell::new(hooks.into_iter().collect()) }
    }

    /// The model without the hooks.
    pub fn model(&self) -> &'m HookedTransformer {
        self.model
    }

    /// The scope with more hooks, which run after those it has.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let first = model.hooks([hook::resid_pre(0).edit(|x, _| x.zeros_like())]);
    /// let both = first.hooks([hook::resid_pre(0).edit(|x, _| x + 1.0)]); // runs behind the first
    /// let stream = both.record("red", hook::resid_pre(0))?.get(hook::resid_pre(0))?;
    /// assert_eq!(stream.min().into_scalar::<f32>(), 1.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn hooks(self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.borrow_mut().extend(hooks);
        self
    }

    /// As [`HookedTransformer::forward`], with the scope's hooks.
    ///
    /// # Errors
    /// As [`HookedTransformer::forward`].
    pub fn forward<'o>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'o>>) -> Result<Tensor<3>> {
        let options = options.into();
        options.check_gives_output()?;
        main_output(self.run(input, options)?)
    }

    /// As [`HookedTransformer::loss`], with the scope's hooks.
    ///
    /// # Errors
    /// As [`HookedTransformer::loss`].
    pub fn loss<'o>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'o>>) -> Result<Tensor<1>> {
        only_loss(self.run(input, options.into().loss())?)
    }

    /// As [`HookedTransformer::run_with_hooks`], these hooks after the scope's.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let scope = model.hooks([hook::resid_pre(0).edit(|x, _| x.zeros_like())]);
    /// let mut seen = 1.0;
    /// scope.run_with_hooks("red", [hook::resid_pre(0).read(|x, _| seen = x.max().into_scalar::<f32>())])?;
    /// assert_eq!(seen, 0.0); // the scope's hooks come first
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::run_with_hooks`].
    pub fn run_with_hooks<'o>(
        &self,
        input: impl Into<Input>,
        hooks: impl IntoIterator<Item = Hook<'o>>,
    ) -> Result<Tensor<3>> {
        self.forward(input, ForwardOptions::new().hooks(hooks))
    }

    /// As [`HookedTransformer::run_with_cache`], with the scope's hooks. Recordings see what the
    /// hooks made of the activations.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]);
    /// let (_, cache) = hooked.run_with_cache("red fox", "*hook_z")?;
    /// assert_eq!(cache.get(hook::z(0))?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::run_with_cache`].
    pub fn run_with_cache(
        &self,
        input: impl Into<Input>,
        record: impl Into<Record>,
    ) -> Result<(Tensor<3>, ActivationCache)> {
        logits_and_cache(self.run(input, ForwardOptions::new().record(record))?)
    }

    /// As [`HookedTransformer::record`], with the scope's hooks.
    ///
    /// # Errors
    /// As [`HookedTransformer::record`].
    pub fn record(&self, input: impl Into<Input>, record: impl Into<Record>) -> Result<ActivationCache> {
        Ok(self.run(input, ForwardOptions::new().logits(Logits::None).record(record))?.cache)
    }

    /// As [`HookedTransformer::run_with_gradients`], with the scope's hooks before those of the
    /// options.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::z(1).edit(|z, _| z.zeros_like())]);
    /// let options = ForwardOptions::new().record("z0");
    /// let output = hooked.run_with_gradients("red fox", options, |logits| logits.sum())?;
    /// assert_eq!(output.cache.grad(hook::z(0))?.dims(), [1, 3, 4, 16]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::run_with_gradients`].
    pub fn run_with_gradients<'o>(
        &self,
        input: impl Into<Input>,
        options: impl Into<ForwardOptions<'o>>,
        number: impl FnOnce(Tensor<3>) -> Tensor<1>,
    ) -> Result<Output> {
        let options: ForwardOptions<'o> = options.into();
        self.with_hooks(|own| {
            let hooks = own.iter_mut().map(Hook::reborrow).chain(options.hooks).collect();
            self.model.run_with_gradients(input, ForwardOptions { hooks, ..options }, number)
        })
    }

    /// As [`HookedTransformer::prefill`], with the scope's hooks. The cache is marked as made under
    /// interventions if any of them edits.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]).prefill("king drum")?;
    /// assert_eq!((cache.len(), cache.interventions().len()), (3, 1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::prefill`].
    pub fn prefill(&self, input: impl Into<Input>) -> Result<KeyValueCache> {
        let tokens = self.model.token_input(input.into())?;
        let mut cache = KeyValueCache::new(self.model.config(), tokens.shape()[0]);
        self.run(tokens, ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache))?;
        Ok(cache)
    }

    /// Lends the scope's hooks to a run.
    pub(crate) fn with_hooks<R>(&self, run: impl FnOnce(&mut Vec<Hook<'h>>) -> Result<R>) -> Result<R> {
        run(&mut *self.hooks.try_borrow_mut().map_err(|_| InputError::Options("a hook ran its own scope's model"))?)
    }

    /// As [`HookedTransformer::run`], with the scope's hooks before those of the options.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let scope = model.hooks([hook::z(1).edit(|z, _| z.zeros_like())]);
    /// let output = scope.run("red fox", ForwardOptions::new().logits(Logits::Last).record("z1"))?;
    /// assert_eq!(output.cache.get(hook::z(1))?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::run`]; a hook that starts a run of its own scope is refused.
    pub fn run<'o>(&self, input: impl Into<Input>, options: impl Into<ForwardOptions<'o>>) -> Result<Output> {
        let options: ForwardOptions<'o> = options.into();
        self.with_hooks(|own| {
            let hooks = own.iter_mut().map(Hook::reborrow).chain(options.hooks).collect();
            self.model.run(input, ForwardOptions { hooks, ..options })
        })
    }
}
