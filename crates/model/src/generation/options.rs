//! Options of generation.

use hooklens_hooks::{Hook, Record};

use super::sampling::Sampling;
use crate::kv_cache::{CacheKind, KeyValueCache};

/// Options of one generation. `()` stands for the defaults: 20 of the most likely tokens, fewer
/// if the model ends the text.
///
/// ```
/// use hooklens::generation::{GenerateOptions, Sampling};
/// let options = GenerateOptions::new()
///     .max_new_tokens(50)
///     .sampling(Sampling { temperature: 0.8, top_p: Some(0.95), ..Sampling::default() })
///     .seed(7)
///     .stop_strings(["\n\n"]);
/// ```
#[derive(Debug)]
pub struct GenerateOptions<'h> {
    pub(crate) max_new_tokens: usize,
    pub(crate) sampling: Sampling,
    pub(crate) seed: u64,
    pub(crate) stop_at_eos: bool,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) stop_strings: Vec<String>,
    pub(crate) first_token: Option<u32>,
    pub(crate) cache_kind: CacheKind,
    pub(crate) prefix: Option<&'h mut KeyValueCache>,
    pub(crate) kv_cache: Option<&'h mut KeyValueCache>,
    pub(crate) hooks: Vec<Hook<'h>>,
    pub(crate) record: Record,
    pub(crate) logits: bool,
}

impl Default for GenerateOptions<'_> {
    fn default() -> Self {
        Self {
            max_new_tokens: 20,
            sampling: Sampling::default(),
            seed: 0,
            stop_at_eos: true,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            first_token: None,
            cache_kind: CacheKind::GROWING,
            prefix: None,
            kv_cache: None,
            hooks: Vec::new(),
            record: Record::default(),
            logits: false,
        }
    }
}

impl<'h> GenerateOptions<'h> {
    /// 20 of the most likely tokens, fewer if the model ends the text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens to add to each row at most.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let made = model.generate_with("king drum sun king", GenerateOptions::new().max_new_tokens(5))?;
    /// assert_eq!(made.rows[0].new.len(), 5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn max_new_tokens(mut self, count: usize) -> Self {
        self.max_new_tokens = count;
        self
    }

    /// How a token is chosen.
    ///
    /// ```
    /// use hooklens::generation::Sampling;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let sampling = Sampling { temperature: 1.5, top_k: Some(1), ..Sampling::default() };
    /// let options = GenerateOptions::new().max_new_tokens(2).sampling(sampling);
    /// let made = model.generate_with("king drum sun king", options)?;
    /// assert_eq!(made.rows[0].text.as_deref(), Some("drum sun")); // of one token to choose from
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Random seed: the same seed draws the same tokens. Each row has its own random stream, independent of
    /// the other rows.
    ///
    /// ```
    /// use hooklens::generation::Sampling;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let drawn = |seed| {
    ///     let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    ///     let options = GenerateOptions::new().max_new_tokens(8).sampling(sampling).seed(seed);
    ///     Ok::<_, hooklens::Error>(model.generate_with("king", options)?.rows[0].new.clone())
    /// };
    /// assert_eq!(drawn(1)?, drawn(1)?);
    /// assert_ne!(drawn(1)?, drawn(2)?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether the model's end-of-sequence tokens end a row, each of them
    /// ([`eos_tokens`](crate::HookedTransformer::eos_tokens)). They do by default.
    #[must_use]
    pub fn stop_at_eos(mut self, stop: bool) -> Self {
        self.stop_at_eos = stop;
        self
    }

    /// Tokens that end a row. They are part of it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let drum = model.to_single_token("drum")?;
    /// let made = model.generate_with("king drum sun king", GenerateOptions::new().stop_tokens([drum]))?;
    /// assert_eq!(made.rows[0].new, [drum]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn stop_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.stop_tokens = tokens.into_iter().collect();
        self
    }

    /// Texts that end a row once its new text holds one. They are part of it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = GenerateOptions::new().stop_strings(["drum sun"]); // may be several tokens
    /// assert_eq!(model.generate_with("king drum sun king", options)?.rows[0].text.as_deref(), Some("drum sun"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn stop_strings(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop_strings = texts.into_iter().map(Into::into).collect();
        self
    }

    /// The first new token of each row, whatever the model says (Hugging Face's `forced_bos_token_id`): the language that
    /// NLLB and mBART translate into. Without it an encoder-decoder begins as its files say
    /// ([`TokenRules`](crate::encoder_decoder::TokenRules)).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/m2m")?;
    /// let french = 9; // model.tokenizer()?.id("fra_Latn")
    /// let made = model.generate_with([5, 6, 7, 2], GenerateOptions::new().max_new_tokens(3).first_token(french))?;
    /// assert_eq!(made.rows[0].new[0], french);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn first_token(mut self, token: u32) -> Self {
        self.first_token = Some(token);
        self
    }

    /// How keys and values are stored meanwhile, in a cache that the generation makes.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::CacheKind;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let text = |kind| {
    ///     let options = GenerateOptions::new().max_new_tokens(3).cache_kind(kind);
    ///     Ok::<_, hooklens::Error>(model.generate_with("king drum sun star king", options)?.rows[0].text.clone())
    /// };
    /// assert_eq!(text(CacheKind::EIGHT_BIT)?, text(CacheKind::GROWING)?); // in a quarter of the memory
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn cache_kind(mut self, kind: CacheKind) -> Self {
        self.cache_kind = kind;
        self
    }

    /// Continues after what this cache holds: its one row before every row of the input, or a row
    /// each. The cache stays as it is. Where it is not empty, a text gets no beginning-of-sequence token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prefix = model.prefill("king drum sun star")?;
    /// let rows = vec![vec![model.to_single_token("king")?], vec![model.to_single_token("drum")?]];
    /// let made = model.generate_with(rows, GenerateOptions::new().max_new_tokens(1).prefix(&mut prefix))?;
    /// assert_eq!(made.rows.iter().filter_map(|row| row.text.as_deref()).collect::<Vec<_>>(), ["drum", "sun"]);
    /// assert_eq!(prefix.len(), 5); // as it was
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, cache: &'h mut KeyValueCache) -> Self {
        self.prefix = Some(cache);
        self
    }

    /// Continues after what this cache holds and fills it, as Hugging Face's `past_key_values` does: it is left with
    /// every column that was run, which is all but the last new token. After an error it holds the steps that
    /// succeeded. Where the cache is not empty, a text gets no beginning-of-sequence token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = KeyValueCache::new(model.config(), 1);
    /// let options = GenerateOptions::new().max_new_tokens(2).kv_cache(&mut cache);
    /// let made = model.generate_with("king drum sun star king", options)?;
    /// assert_eq!((made.rows[0].text.as_deref(), cache.len()), (Some("drum sun"), 6 + 1));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn kv_cache(mut self, cache: &'h mut KeyValueCache) -> Self {
        self.kv_cache = Some(cache);
        self
    }

    /// Adds hooks, which run at every step: first on the whole prompt, then on each new token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut seen = vec![];
    /// let look = hook::resid_post(1).read(|stream, at| seen.push((at.offset(), stream.dims()[1])));
    /// model.generate_with("king drum sun king", GenerateOptions::new().max_new_tokens(3).hooks([look]))?;
    /// assert_eq!(seen, [(0, 5), (5, 1), (6, 1)]); // the prompt, then a token at a time
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Records activations at every step.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = GenerateOptions::new().max_new_tokens(3).record("*hook_pattern");
    /// let steps = model.generate_with("king drum sun king", options)?.steps;
    /// assert_eq!(steps[0].get(hook::pattern(1))?.dims(), [1, 4, 5, 5]);
    /// assert_eq!(steps[2].get(hook::pattern(1))?.dims(), [1, 4, 1, 7]); // one query, all keys
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn record(mut self, record: impl Into<Record>) -> Self {
        self.record = record.into();
        self
    }

    /// Gives the logits each token was chosen by.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let made = model.generate_with("king drum sun king", GenerateOptions::new().max_new_tokens(2).logits())?;
    /// let best = made.logits.map(|logits| logits.narrow(1, 1, 1).argmax(2).into_scalar::<i64>() as u32);
    /// assert_eq!(best, Some(made.rows[0].new[1]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn logits(mut self) -> Self {
        self.logits = true;
        self
    }
}
