//! Options for generation.

use hooklens_hooks::{Hook, Record};

use super::sampling::Sampling;
use crate::kv_cache::{CacheKind, KeyValueCache};

/// Options for one generation. The defaults are greedy decoding of up to 20 tokens, or fewer if the model ends the
/// text.
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
            kv_cache: None,
            hooks: Vec::new(),
            record: Record::default(),
            logits: false,
        }
    }
}

impl<'h> GenerateOptions<'h> {
    /// Creates the default options: greedy decoding of up to 20 tokens, or fewer if the model ends the text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of new tokens per row.
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

    /// Sets how tokens are sampled.
    ///
    /// ```
    /// use hooklens::generation::Sampling;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let sampling = Sampling { temperature: 1.5, top_k: Some(1), ..Sampling::default() };
    /// let options = GenerateOptions::new().max_new_tokens(2).sampling(sampling);
    /// let made = model.generate_with("king drum sun king", options)?;
    /// assert_eq!(made.rows[0].text.as_deref(), Some("drum sun")); // only one token to choose from
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the random seed. The same seed draws the same tokens. Each row has its own random stream, independent of
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

    /// Sets whether any of the model's end-of-sequence tokens
    /// ([`eos_tokens`](crate::model::HookedTransformer::eos_tokens)) ends a row (default: yes).
    #[must_use]
    pub fn stop_at_eos(mut self, stop: bool) -> Self {
        self.stop_at_eos = stop;
        self
    }

    /// Sets tokens that end a row. The stop token is included in the output.
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

    /// Sets strings that end a row as soon as its new text contains one of them. The stop string is included in the
    /// output.
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

    /// Forces the first new token of each row (Hugging Face's `forced_bos_token_id`), such as the target-language token
    /// of NLLB or mBART. Otherwise, an encoder-decoder starts as its files specify; see
    /// [`TokenRules`](crate::encoder_decoder::TokenRules).
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

    /// Sets how the generation's own cache stores keys and values.
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

    /// Continues after the contents of this cache and fills it, as with Hugging Face's `past_key_values`. Afterwards
    /// the cache contains every column that was run, that is, all but the last new token; after an error, it contains
    /// the columns of the steps that succeeded. A frozen cache is not changed; it must have either one row, which all
    /// input rows continue, or one row per input row. If the cache is not empty, no beginning-of-sequence token is
    /// prepended to text.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = KeyValueCache::new(model.config(), 1);
    /// let options = GenerateOptions::new().max_new_tokens(2).kv_cache(&mut cache);
    /// let made = model.generate_with("king drum sun star king", options)?;
    /// assert_eq!((made.rows[0].text.as_deref(), cache.len()), (Some("drum sun"), 6 + 1));
    ///
    /// let mut prefix = model.prefill("king drum sun star")?;
    /// prefix.freeze();
    /// let rows = ["king", "drum"];
    /// let made = model.generate_with(rows, GenerateOptions::new().max_new_tokens(1).kv_cache(&mut prefix))?;
    /// assert_eq!(made.rows.iter().filter_map(|row| row.text.as_deref()).collect::<Vec<_>>(), ["drum", "sun"]);
    /// assert_eq!(prefix.len(), 5); // unchanged
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
    /// assert_eq!(seen, [(0, 5), (5, 1), (6, 1)]); // the prompt, then one token at a time
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

    /// Returns the logits from which each token was chosen.
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
