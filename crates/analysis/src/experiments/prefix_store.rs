//! [`PrefixStore`]: key-value caches, looked up by prefix.

use hooklens_model::config::Layers;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{CacheError, InputError, Result};
use hooklens_model::kv_cache::{KeyValueCache, check_model, hides};
use hooklens_model::model::{DecoderInput, HookedTransformer, Identified};
use hooklens_model::tokens::Tokens;

/// Key-value caches of prefixes, looked up by their tokens. Common prefixes are computed and stored once. A store
/// serves one model, with the weights it had at the first lookup. Caches computed under interventions are rejected.
///
/// ```
/// use hooklens::experiments::PrefixStore;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut store = PrefixStore::new(&model);
/// let mut cache = store.get("king drum sun star")?;
/// let mut longer = store.get("king drum sun star moon")?;
/// assert_eq!((cache.len(), longer.len(), store.tokens_run()), (5, 6, 6));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct PrefixStore<'m> {
    model: &'m HookedTransformer,
    held: Vec<(Vec<u32>, KeyValueCache)>,
    tokens_run: usize,
}

impl<'m> PrefixStore<'m> {
    /// An empty store for a model.
    pub fn new(model: &'m HookedTransformer) -> Self {
        Self { model, held: Vec::new(), tokens_run: 0 }
    }

    /// A cache with one row that contains this prefix, ready for continuation. Only the tokens after the longest stored
    /// prefix are computed.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # use hooklens::experiments::PrefixStore;
    /// let mut store = PrefixStore::new(&model);
    /// store.get("king drum sun star")?;
    /// let mut cache = store.get("king drum fox")?; // one new word
    /// assert_eq!(store.tokens_run(), 5 + 1);
    /// let logits = model.forward_with([51], ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!(logits.dims()[..2], [1, 1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`DecoderModel::prefill`](hooklens_model::model::DecoderModel::prefill); also fails if the prefix is not
    /// a single row without padding.
    pub fn get(&mut self, prefix: impl Into<hooklens_model::driver::Input>) -> Result<KeyValueCache> {
        let tokens = self.row(self.model.token_input(prefix.into())?)?;
        let whole = self.model.config().has_states();
        let thresholds = self.model.config().rotation_thresholds();
        let alike = |held: &[u32]| {
            let alike = held.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            // Recurrent states cannot be rolled back, nor can keys whose rotation depends on the text's length be
            // reused.
            let by_length = thresholds.iter().any(|own| held.len().max(tokens.len()) > own.context);
            let apart = (whole && alike < held.len()) || (by_length && held.len() != tokens.len());
            if apart { 0 } else { alike }
        };
        let mut nearest: Vec<(usize, usize)> =
            self.held.iter().enumerate().map(|(place, (held, _))| (alike(held), place)).collect();
        nearest.retain(|(known, _)| *known > 0);
        nearest.sort_by_key(|(known, _)| std::cmp::Reverse(*known));
        let mut found = None;
        for (known, place) in nearest {
            let mut fork = self.held[place].1.fork(1)?;
            // A sliding-window cache may have dropped keys that an earlier position needs. Try the next best cache.
            match fork.truncate(known) {
                Ok(()) => {
                    found = Some((fork, known));
                    break;
                }
                Err(CacheError::Dropped { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (mut cache, known) = found.unwrap_or_else(|| (KeyValueCache::new(self.model.config(), 1), 0));
        if known < tokens.len() {
            let options = hooklens_model::driver::ForwardOptions::new()
                .logits(hooklens_model::driver::Logits::None)
                .kv_cache(&mut cache);
            self.model.run(vec![tokens[known..].to_vec()], options)?;
            self.tokens_run += tokens.len() - known;
            let kept = cache.fork(1)?;
            self.held.push((tokens, kept));
        }
        Ok(cache)
    }

    /// Adds a cache of this prefix that was computed elsewhere.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # use hooklens::experiments::PrefixStore;
    /// let mut store = PrefixStore::new(&model);
    /// store.insert("king drum", model.prefill("king drum")?)?;
    /// store.get("king drum sun")?;
    /// assert_eq!(store.tokens_run(), 1);
    /// // A cache made under editing hooks is rejected.
    /// let edited = model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]).prefill("fox")?;
    /// assert!(store.insert("fox", edited).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Intervened`] if hooks edited activations while the cache was computed; [`CacheError::Hides`] if
    /// the cache masks its first positions; [`CacheError::Length`], [`CacheError::Batch`] or
    /// [`CacheError::OtherText`] if the cache is not one row of these tokens. Also fails if the cache was computed by
    /// a different model.
    pub fn insert(&mut self, prefix: impl Into<hooklens_model::driver::Input>, mut cache: KeyValueCache) -> Result<()> {
        let tokens = self.row(self.model.token_input(prefix.into())?)?;
        if !cache.interventions().is_empty() {
            return Err(CacheError::Intervened { interventions: cache.interventions().join(", ") }.into());
        }
        if hides(&cache) {
            return Err(CacheError::Hides.into());
        }
        check_model(&cache, &self.model.identity())?;
        if cache.batch() != 1 {
            return Err(CacheError::Batch { cache: 1, run: cache.batch() }.into());
        }
        if cache.lengths() != [tokens.len()] || cache.len() != tokens.len() {
            return Err(CacheError::Length { layer: 0, entry: cache.len(), mask: tokens.len() }.into());
        }
        if let Some([held]) = cache.tokens().as_deref()
            && let Some(position) = (0..tokens.len()).find(|position| held[*position] != tokens[*position])
        {
            let (cache, given) = (held[position].to_string(), tokens[position].to_string());
            return Err(CacheError::OtherText { position, cache, given }.into());
        }
        let held = cache.fork(1)?;
        self.held.push((tokens, held));
        Ok(())
    }

    fn row(&self, tokens: Tokens) -> Result<Vec<u32>> {
        let (rows, padded) = (tokens.shape()[0], tokens.mask().is_some());
        if rows != 1 || padded {
            return Err(InputError::NotOneRow { what: "a prefix", rows, padded }.into());
        }
        Ok(tokens.row(0).to_vec())
    }

    /// Number of tokens computed so far.
    pub fn tokens_run(&self) -> usize {
        self.tokens_run
    }
}
