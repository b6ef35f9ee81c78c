//! What to compute in one run, and what it gives back.

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook, Record};

use crate::error::InputError;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// Which rows of the logits to compute. The unembedding is a large part of a small run: rows
/// nobody reads need not be paid for.
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
    #[must_use]
    pub fn loss(mut self) -> Self {
        self.loss = true;
        self
    }

    /// Computes the cross-entropy of each next token.
    #[must_use]
    pub fn loss_per_token(mut self) -> Self {
        self.loss_per_token = true;
        self
    }

    /// Begins with this layer: the input is the residual stream before it. Negative layers count
    /// from the end.
    #[must_use]
    pub fn start_at_layer(mut self, layer: isize) -> Self {
        self.start_at_layer = Some(layer);
        self
    }

    /// Ends before this layer and gives the residual stream there. Negative layers count from
    /// the end; the number of layers itself gives the last stream.
    #[must_use]
    pub fn stop_at_layer(mut self, layer: isize) -> Self {
        self.stop_at_layer = Some(layer);
        self
    }

    /// `true` for real tokens, a row a batch row; replaces the mask the tokens came with.
    #[must_use]
    pub fn attention_mask(mut self, mask: Vec<Vec<bool>>) -> Self {
        self.attention_mask = Some(mask);
        self
    }

    /// The tokens a residual stream was made from; the loss needs them, and their mask is used.
    #[must_use]
    pub fn tokens(mut self, tokens: &Tokens) -> Self {
        self.tokens = Some(tokens.clone());
        self
    }

    /// Adds hooks, run after those added before.
    #[must_use]
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Goes on behind the positions this cache holds, and adds the run's to it unless it is
    /// frozen. The input is what comes after them.
    #[must_use]
    pub fn kv_cache(mut self, cache: &'h mut KeyValueCache) -> Self {
        self.kv_cache = Some(cache);
        self
    }

    /// Records activations.
    #[must_use]
    pub fn record(mut self, record: impl Into<Record>) -> Self {
        self.record = record.into();
        self
    }
}

/// What a run gives back; parts that were not asked for are `None` (the cache: empty).
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
