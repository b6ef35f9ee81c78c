//! Methods of Hugging Face's caches, under their Hugging Face names.

use burn::tensor::Tensor;

use crate::config::{Layers, TransformerConfig};
use crate::error::CacheError;
use crate::kv_cache::{CacheKind, KeyValueCache};

/// Methods of the cache classes in Hugging Face's transformers.
pub trait HuggingFaceCache: Sized {
    /// Same as [`KeyValueCache::append`].
    ///
    /// # Errors
    /// Same as [`KeyValueCache::append`].
    fn update(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        layer: usize,
    ) -> Result<(Tensor<4>, Tensor<4>), CacheError>;

    /// Keeps the first `max_length` positions, or all but the last `-max_length` if it is negative.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::HuggingFaceCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.crop(-2)?;
    /// assert_eq!(cache.len(), 3);
    /// assert_eq!(
    ///     cache.crop(-9).unwrap_err().to_string(),
    ///     "9 positions were requested, but the cache holds 3",
    /// );
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`KeyValueCache::truncate`], and [`CacheError::TooFew`] if more positions are to be removed than the
    /// cache holds.
    fn crop(&mut self, max_length: isize) -> Result<(), CacheError>;

    /// Keys and values of each layer in the layout of Hugging Face's legacy tuples, `[batch, kv_head, position,
    /// d_head]`, with rotary embeddings applied to the keys. Layers without attention, and layers that reuse an earlier
    /// layer's keys and values, have no tuple.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::HuggingFaceCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tuples = model.prefill("king drum sun star")?.to_legacy_cache()?;
    /// let (keys, values) = &tuples[0]; // one pair per layer
    /// assert_eq!((keys.dims(), values.dims()), ([1, 4, 5, 16], [1, 4, 5, 16])); // heads before positions
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::State`] if a layer has a recurrent state, [`CacheError::Dropped`] if a window has dropped
    /// positions, or [`CacheError::Disk`] if a cache on disk can't be read.
    fn to_legacy_cache(&self) -> Result<Vec<(Tensor<4>, Tensor<4>)>, CacheError>;

    /// Creates a growing cache from Hugging Face's legacy tuples, for a model with this configuration. Without a
    /// `mask`, all positions are unmasked.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::HuggingFaceCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum sun star")?;
    /// let again = KeyValueCache::from_legacy_cache(model.config(), cache.to_legacy_cache()?, None)?;
    /// assert_eq!(again[0].keys()?.to_data(), cache[0].keys()?.to_data());
    /// assert_eq!(again.tokens(), None); // tuples come without their tokens
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Layers`] if the number of tuples does not match the model, [`CacheError::Shape`] if keys or values
    /// have the wrong shape, [`CacheError::MaskLength`] if the mask has the wrong length, or [`CacheError::State`] if a
    /// layer has a recurrent state.
    fn from_legacy_cache(
        config: &TransformerConfig,
        tuples: Vec<(Tensor<4>, Tensor<4>)>,
        mask: Option<Vec<Vec<bool>>>,
    ) -> Result<Self, CacheError>;

    /// Repeats each row `n` times.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::HuggingFaceCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea"])?;
    /// cache.batch_repeat_interleave(3)?;
    /// assert_eq!(cache.batch(), 6); // three consecutive copies of each row
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen, or [`CacheError::Size`] if `n` is zero.
    fn batch_repeat_interleave(&mut self, n: usize) -> Result<(), CacheError>;

    /// Reorders the rows, as in beam search: row `i` becomes the previous row `order[i]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::HuggingFaceCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill(["king drum", "fox tea"])?;
    /// cache.reorder_cache(&[1, 0])?;
    /// let swapped = model.prefill(["fox tea", "king drum"])?;
    /// let gap = cache[0].keys()? - swapped[0].keys()?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`KeyValueCache::select_rows`], and [`CacheError::Batch`] if the order does not have one entry per row.
    fn reorder_cache(&mut self, order: &[usize]) -> Result<(), CacheError>;
}

impl HuggingFaceCache for KeyValueCache {
    fn update(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        layer: usize,
    ) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        self.append(keys, values, layer)
    }

    fn crop(&mut self, max_length: isize) -> Result<(), CacheError> {
        let (held, count) = (self.len(), max_length.unsigned_abs());
        let len = match max_length < 0 {
            true => held.checked_sub(count).ok_or(CacheError::TooFew { held, asked: count })?,
            false => count,
        };
        self.truncate(len)
    }

    fn to_legacy_cache(&self) -> Result<Vec<(Tensor<4>, Tensor<4>)>, CacheError> {
        self.check_without_states("conversion to and from tuples of keys and values")?;
        let heads_first = |x: Tensor<4>| x.permute([0, 2, 1, 3]);
        let mut tuples = Vec::new();
        for (layer, entry) in self.entries.iter().enumerate() {
            if !entry.holds() {
                continue;
            }
            if entry.first_of_all() > 0 {
                return Err(CacheError::Dropped { layer, first: entry.first_of_all(), wanted: 0 });
            }
            tuples.extend(entry.joined()?.map(|(keys, values)| (heads_first(keys), heads_first(values))));
        }
        Ok(tuples)
    }

    fn from_legacy_cache(
        config: &TransformerConfig,
        tuples: Vec<(Tensor<4>, Tensor<4>)>,
        mask: Option<Vec<Vec<bool>>>,
    ) -> Result<Self, CacheError> {
        let holding: Vec<usize> = config.attending().filter(|layer| config.reads_keys_of(*layer).is_none()).collect();
        if tuples.len() != holding.len() {
            return Err(CacheError::Layers { cache: tuples.len(), model: holding.len() });
        }
        let [batch, _, len, _] = tuples.first().map_or([0; 4], |(keys, _)| keys.dims());
        let mut cache = Self::of_kind(config, batch, CacheKind::GROWING)?;
        cache.check_without_states("conversion to and from tuples of keys and values")?;
        for (layer, (keys, values)) in holding.into_iter().zip(tuples) {
            let [keys, values] = [keys, values].map(|x| x.permute([0, 2, 1, 3]));
            for (what, given, width) in
                [("keys", keys.dims(), config.d_head_of(layer)), ("values", values.dims(), config.d_value_of(layer))]
            {
                let expected = [batch, len, config.n_kv_heads_of(layer), width];
                if given != expected {
                    return Err(CacheError::Shape { what, expected, given });
                }
            }
            cache.entries[layer].append(keys, values)?;
        }
        cache.entries.iter_mut().filter(|entry| !entry.holds()).for_each(|entry| entry.fill_with_nothing(len, batch));
        let mask = mask.unwrap_or_else(|| vec![vec![true; len]; batch]);
        if let Some(row) = mask.iter().find(|row| row.len() != len) {
            return Err(CacheError::MaskLength { expected: len, given: row.len() });
        }
        cache.append_attention_mask(&mask)?;
        Ok(cache)
    }

    fn batch_repeat_interleave(&mut self, n: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        *self = self.fork(n)?;
        Ok(())
    }

    fn reorder_cache(&mut self, order: &[usize]) -> Result<(), CacheError> {
        if order.len() != self.batch() {
            return Err(CacheError::Batch { cache: self.batch(), run: order.len() });
        }
        self.select_rows(order)
    }
}
