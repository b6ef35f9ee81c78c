//! Options of a run: logits, losses, layers, masks, hooks, caches, and recordings.

use std::sync::Arc;

use hooklens_hooks::{Hook, ModelIdentity, Ordinal, Record};

use crate::error::InputError;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// Which positions to compute logits for. The unembedding takes a large part of a small run's time, so skip positions
/// that you don't need.
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
#[non_exhaustive]
pub enum Logits {
    /// Every position.
    #[default]
    All,
    /// Only the last unmasked token of each row.
    Last,
    /// No logits. The run ends after the last requested point.
    None,
}

/// Formats as `all`, `last` or `none`.
impl std::fmt::Display for Logits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Logits::All => "all",
            Logits::Last => "last",
            Logits::None => "none",
        })
    }
}

/// Options of one run of any model. By default, a run computes all logits and nothing else. A [`Record`] converts to
/// the default options plus that record.
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
    /// For sweeps, in which all rows are copies of one row of the caller's batch: the index of that row, and the number
    /// of rows in the caller's batch.
    pub(crate) copies: Option<[usize; 2]>,
    /// The model's identity, if the caller has already computed it for several runs.
    pub(crate) identity: Option<Arc<ModelIdentity>>,
}

impl From<Record> for ForwardOptions<'_> {
    fn from(record: Record) -> Self {
        Self::new().record(record)
    }
}

impl<'h> ForwardOptions<'h> {
    /// Options that compute all logits and nothing else.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that the run computes a main output.
    pub(crate) fn check_gives_output(&self) -> Result<(), InputError> {
        if self.logits == Logits::None && self.stop_at_layer.is_none() {
            return Err(InputError::NoOutput { what: "logits" });
        }
        Ok(())
    }

    /// Rejects options that only a decoder supports.
    pub(crate) fn check_plain(&self, model: &'static str) -> Result<(), InputError> {
        let given = [
            ("loss", self.loss),
            ("loss_per_token", self.loss_per_token),
            ("start_at_layer", self.start_at_layer.is_some()),
            ("stop_at_layer", self.stop_at_layer.is_some()),
            ("attention_mask", self.attention_mask.is_some()),
            ("tokens", self.tokens.is_some()),
            ("kv_cache", self.kv_cache.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(InputError::NoSuchOption { option, model }),
            None => Ok(()),
        }
    }

    /// Sets which logits to compute.
    #[must_use]
    pub fn logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }

    /// Computes the mean cross-entropy of next-token predictions.
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

    /// Computes the cross-entropy of each next-token prediction.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let output = model.run("red fox tea red fox tea", ForwardOptions::new().loss_per_token())?;
    /// let each = output.loss_per_token.map(|loss| Activation::from(loss).to_ndarray()).transpose()?;
    /// // Repeated text is easier to predict: `fox` after the second `red`.
    /// assert!(each.is_some_and(|each| each[[0, 4]] < each[[0, 1]]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn loss_per_token(mut self) -> Self {
        self.loss_per_token = true;
        self
    }

    /// Starts at this layer: the input is the residual stream before it. Negative layers count from the end.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.forward_with("When Mary and John", ForwardOptions::new().stop_at_layer(2))?;
    /// let rest = model.forward_with(stream, ForwardOptions::new().start_at_layer(2))?;
    /// let gap = rest - model.forward("When Mary and John")?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn start_at_layer(mut self, layer: impl Ordinal) -> Self {
        self.start_at_layer = Some(layer.number());
        self
    }

    /// Stops before this layer and returns the residual stream there. Negative layers count from the end; a `layer`
    /// equal to the number of layers gives the final residual stream.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.forward_with("When Mary", ForwardOptions::new().stop_at_layer(-1))?; // before the last layer
    /// let recorded = model.record("When Mary", hook::resid_pre(-1))?.get(hook::resid_pre(-1))?;
    /// assert_eq!((stream - recorded).abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn stop_at_layer(mut self, layer: impl Ordinal) -> Self {
        self.stop_at_layer = Some(layer.number());
        self
    }

    /// Sets the attention mask, `[batch, pos]` with `true` for real tokens. Replaces the mask of the input tokens.
    ///
    /// With a non-empty cache, the mask covers either only the new tokens, or the cached tokens followed by the new
    /// ones, as in Hugging Face.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// // The second token is padding: no token attends to it, and it takes no position.
    /// let mask = vec![vec![true, false, true]];
    /// let last = || ForwardOptions::new().logits(Logits::Last);
    /// let masked = model.forward_with([0, 50, 9], last().attention_mask(mask))?;
    /// let without = model.forward_with([0, 9], last())?;
    /// assert!((masked - without).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn attention_mask(mut self, mask: Vec<Vec<bool>>) -> Self {
        self.attention_mask = Some(mask);
        self
    }

    /// Sets the tokens that a residual stream was computed from. The loss requires the tokens, and the run uses their
    /// mask.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokens = model.to_tokens("When Mary and John")?;
    /// let stream = model.forward_with(&tokens, ForwardOptions::new().stop_at_layer(2))?;
    /// let loss = model.loss_with(stream, ForwardOptions::new().start_at_layer(2).tokens(&tokens))?;
    /// let whole = model.loss(&tokens)?;
    /// assert!((loss - whole).into_scalar::<f32>().abs() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn tokens(mut self, tokens: &Tokens) -> Self {
        self.tokens = Some(tokens.clone());
        self
    }

    /// Appends hooks, which run after those already added.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let ablate = hook::z(1).edit(|z, _| z.zeros_like());
    /// let output = model.run("red fox red", ForwardOptions::new().hooks([ablate]).loss().record("z1"))?;
    /// assert!(output.loss.is_some());
    /// assert_eq!(output.cache.get(hook::z(1))?.max().into_scalar::<f32>(), 0.0); // after the hook's edit
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Continues after the positions in this cache, and appends the new positions to it unless it is frozen. The input
    /// contains the new positions only: if the cache is not empty, no beginning-of-sequence token is prepended to text.
    /// To add one, pass tokens ([`to_tokens_with`](crate::model::HookedTransformer::to_tokens_with) with
    /// `prepend_bos: Some(true)`).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let king = model.to_single_token("king")?;
    /// let next = model.forward_with([king], ForwardOptions::new().kv_cache(&mut cache))?;
    /// let whole = model.forward("king drum sun star king")?.narrow(1, 5, 1);
    /// assert!((next - whole).abs().max().into_scalar::<f32>() < 1e-4);
    /// assert_eq!(cache.len(), 6);
    /// let text = model.forward_with("drum sun", ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!(text.dims()[1], 2); // two words, no second `<bos>`
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

/// Declares that all rows of a run are copies of row `row` in the caller's batch, which has `of` rows.
pub fn for_copies<'h>(options: ForwardOptions<'h>, row: usize, of: usize) -> ForwardOptions<'h> {
    ForwardOptions { copies: Some([row, of]), ..options }
}

/// Passes the identity of the model, so that the run does not recompute it.
pub fn with_identity<'h>(options: ForwardOptions<'h>, identity: &Arc<ModelIdentity>) -> ForwardOptions<'h> {
    ForwardOptions { identity: Some(identity.clone()), ..options }
}
