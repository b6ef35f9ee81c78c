//! What to compute in one run, and what it gives back.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use crate::error::InputError;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// Which rows of the logits to compute. The unembedding is a large part of a small run: rows
/// nobody reads need not be paid for.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let last = model.run("red fox", ForwardOptions::new().logits(Logits::Last))?.logits;
/// assert_eq!(last.map(|logits| logits.dims()), Some([1, 1, 63]));
/// let none = model.run("red fox", ForwardOptions::new().logits(Logits::None).record("resid_post0"))?;
/// assert!(none.logits.is_none() && none.cache.contains("resid_post0"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Logits {
    /// Every position.
    #[default]
    All,
    /// Each row's last real token only.
    Last,
    /// None: the run ends after the last point asked for.
    None,
}

/// Options of one run. `()` stands for the defaults: all logits, nothing else.
///
/// ```
/// use hooklens::{ForwardOptions, Logits};
/// let options = ForwardOptions::new().logits(Logits::Last).record("blocks.*.hook_resid_post");
/// ```
#[derive(Debug, Default)]
pub struct ForwardOptions<'h> {
    pub(crate) logits: Logits,
    pub(crate) loss: bool,
    pub(crate) loss_per_token: bool,
    pub(crate) start_at_layer: Option<isize>,
    pub(crate) stop_at_layer: Option<isize>,
    pub(crate) attention_mask: Option<Vec<Vec<bool>>>,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) hooks: Vec<Hook<'h>>,
    pub(crate) record: Record,
    pub(crate) kv_cache: Option<&'h mut KeyValueCache>,
}

impl From<()> for ForwardOptions<'_> {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl<'h> ForwardOptions<'h> {
    /// All logits, nothing else.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a run whose one result is wanted has one.
    pub(crate) fn check_gives_output(&self) -> Result<(), InputError> {
        if self.logits == Logits::None && self.stop_at_layer.is_none() {
            return Err(InputError::Options("a forward without logits gives nothing; use `record` or `run`"));
        }
        Ok(())
    }

    /// Which logits to compute.
    #[must_use]
    pub fn logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }

    /// Computes the mean cross-entropy of predicting each next token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let output = model.run("red fox tea red fox tea", ForwardOptions::new().loss().loss_per_token())?;
    /// let mean = output.loss_per_token.map(|each| each.mean().into_scalar::<f32>());
    /// let loss = output.loss.map(|loss| loss.into_scalar::<f32>());
    /// assert!(mean.zip(loss).is_some_and(|(mean, loss)| (mean - loss).abs() < 1e-5));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn loss(mut self) -> Self {
        self.loss = true;
        self
    }

    /// Computes the cross-entropy of each next token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let output = model.run("red fox tea red fox tea", ForwardOptions::new().loss_per_token())?;
    /// let each = output.loss_per_token.map(|loss| Activation::from(loss).to_ndarray()).transpose()?;
    /// // What comes again is expected: `fox` after the second `red`.
    /// assert!(each.is_some_and(|each| each[[0, 4]] < each[[0, 1]]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn loss_per_token(mut self) -> Self {
        self.loss_per_token = true;
        self
    }

    /// Begins with this layer: the input is the residual stream before it. Negative layers count
    /// from the end.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.forward("When Mary and John", ForwardOptions::new().stop_at_layer(2))?;
    /// let rest = model.forward(stream, ForwardOptions::new().start_at_layer(2))?;
    /// let gap = rest - model.forward("When Mary and John", ())?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn start_at_layer(mut self, layer: isize) -> Self {
        self.start_at_layer = Some(layer);
        self
    }

    /// Ends before this layer and gives the residual stream there. Negative layers count from
    /// the end; the number of layers itself gives the last stream.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.forward("When Mary", ForwardOptions::new().stop_at_layer(-1))?; // before the last
    /// let recorded = model.record("When Mary", hook::resid_pre(-1))?.get(hook::resid_pre(-1))?;
    /// assert_eq!((stream - recorded).abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn stop_at_layer(mut self, layer: isize) -> Self {
        self.stop_at_layer = Some(layer);
        self
    }

    /// `true` for real tokens, a row a batch row; replaces the mask the tokens came with.
    ///
    /// Behind a cache it is the mask of the new tokens, or that of the cache's and theirs, as Hugging Face has it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// // The second token is padding: it is not seen and takes no position.
    /// let mask = vec![vec![true, false, true]];
    /// let last = || ForwardOptions::new().logits(Logits::Last);
    /// let masked = model.forward([0, 50, 9], last().attention_mask(mask))?;
    /// let without = model.forward([0, 9], last())?;
    /// assert!((masked - without).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn attention_mask(mut self, mask: Vec<Vec<bool>>) -> Self {
        self.attention_mask = Some(mask);
        self
    }

    /// The tokens a residual stream was made from; the loss needs them, and their mask is used.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokens = model.to_tokens("When Mary and John")?;
    /// let stream = model.forward(&tokens, ForwardOptions::new().stop_at_layer(2))?;
    /// let loss = model.loss(stream, ForwardOptions::new().start_at_layer(2).tokens(&tokens))?;
    /// let whole = model.loss(&tokens, ())?;
    /// assert!((loss - whole).into_scalar::<f32>().abs() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn tokens(mut self, tokens: &Tokens) -> Self {
        self.tokens = Some(tokens.clone());
        self
    }

    /// Adds hooks, run after those added before.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let ablate = hook::z(1).edit(|z, _| z.zeros_like());
    /// let output = model.run("red fox red", ForwardOptions::new().hooks([ablate]).loss().record("z1"))?;
    /// assert!(output.loss.is_some());
    /// assert_eq!(output.cache.get(hook::z(1))?.max().into_scalar::<f32>(), 0.0); // as the hook left it
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Goes on behind the positions this cache holds, and adds the run's to it unless it is
    /// frozen. The input is what comes after them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let king = model.to_single_token("king")?;
    /// let next = model.forward([king], ForwardOptions::new().kv_cache(&mut cache))?;
    /// let whole = model.forward("king drum sun star king", ())?.narrow(1, 5, 1);
    /// assert!((next - whole).abs().max().into_scalar::<f32>() < 1e-4);
    /// assert_eq!(cache.len(), 6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn kv_cache(mut self, cache: &'h mut KeyValueCache) -> Self {
        self.kv_cache = Some(cache);
        self
    }

    /// Records activations.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = ForwardOptions::new().record(Record::new("*hook_pattern").positions(-1));
    /// let cache = model.run("red fox red", options)?.cache;
    /// assert_eq!(cache.get(hook::pattern(0))?.dims(), [1, 4, 1, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn record(mut self, record: impl Into<Record>) -> Self {
        self.record = record.into();
        self
    }
}

/// What a run gives back; parts that were not asked for are `None` (the cache: empty).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let output = model.run("red fox red", ForwardOptions::new().loss().record(hook::z(0)))?;
/// assert!(output.logits.is_some() && output.loss.is_some() && output.cache.len() == 1);
/// assert!(output.loss_per_token.is_none() && output.residual.is_none()); // not asked for
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct Output {
    /// `[batch, pos, d_vocab_out]`, or `[batch, 1, d_vocab_out]` for [`Logits::Last`].
    pub logits: Option<Tensor<3>>,
    /// Mean cross-entropy over real next tokens, `[1]`, in nats.
    pub loss: Option<Tensor<1>>,
    /// Cross-entropy of each next token, `[batch, pos - 1]`, in nats; 0 where either token is
    /// padding.
    pub loss_per_token: Option<Tensor<2>>,
    /// The residual stream where the run was told to stop, `[batch, pos, d_model]`.
    pub residual: Option<Tensor<3>>,
    /// What was recorded.
    pub cache: ActivationCache,
}
