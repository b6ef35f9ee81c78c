//! Methods of EasyDeL's cache, under their EasyDeL names.

use crate::error::CacheError;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// Methods of EasyDeL's `TransformerCache` and its views.
pub trait EasyDelCache {
    /// For each row, the first column that is visible to attention, or the number of columns if none is.
    fn starts(&self) -> Vec<usize>;

    /// Like [`KeyValueCache::append_attention_mask`], with the mask computed from tokens: all tokens are unmasked,
    /// except the shape's [`pad_token_id`](crate::kv_cache::CacheShape::pad_token_id).
    ///
    /// ```
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// use hooklens::kv_cache::compat::EasyDelCache;
    /// let shape = CacheShape::new(2, 1, 2, 4)?.pad_token(9);
    /// let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING)?;
    /// let mask = cache.append_tokens(&[vec![9, 1, 2], vec![3, 4, 5]])?;
    /// assert_eq!(mask, [[false, true, true], [true, true, true]]);
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`KeyValueCache::append_attention_mask`], and [`CacheError::NoPadToken`] if the shape has no padding
    /// token.
    fn append_tokens(&mut self, tokens: &[Vec<u32>]) -> Result<Vec<Vec<bool>>, CacheError>;

    /// Masks the columns before `starts[i]` in row `slot + i`. This affects only attention: all tokens keep their
    /// positions, so cached rotated keys remain valid. (To renumber the remaining tokens, run them again.) A smaller
    /// start reveals columns that were hidden before.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::EasyDelCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.insert_starts(&[2], 0)?;
    /// assert_eq!((cache.attention_mask(), cache.lengths()), (vec![vec![false, false, true, true, true]], vec![5]));
    /// assert_eq!(cache.starts(), [2]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen, [`CacheError::State`] if a layer has a recurrent state,
    /// [`CacheError::Slot`] or [`CacheError::Slots`] if the cache does not have these rows, or [`CacheError::TooFew`]
    /// if a start is beyond the cached columns.
    fn insert_starts(&mut self, starts: &[usize], slot: usize) -> Result<(), CacheError>;

    /// Keeps only the first `index[i]` positions of row `slot + i`. Later columns remain as padding, and the row's next
    /// token gets position `index[i]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::kv_cache::compat::EasyDelCache;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut batch = model.prefill(["king drum sun", "fox tea owl"])?;
    /// batch.insert_index(&[2, 3], 0)?;
    /// assert_eq!(batch.lengths(), [2, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Slot`] or [`CacheError::Slots`] if the cache does not have these rows, [`CacheError::TooFew`] if a
    /// row has fewer positions, or [`CacheError::Frozen`], [`CacheError::Dropped`] and [`CacheError::State`] as in
    /// [`KeyValueCache::truncate`]. On error, the cache is unchanged.
    fn insert_index(&mut self, index: &[usize], slot: usize) -> Result<(), CacheError>;
}

impl EasyDelCache for KeyValueCache {
    fn starts(&self) -> Vec<usize> {
        self.attention_mask().iter().map(|row| row.iter().position(|seen| *seen).unwrap_or(row.len())).collect()
    }

    fn append_tokens(&mut self, tokens: &[Vec<u32>]) -> Result<Vec<Vec<bool>>, CacheError> {
        let pad = self.shape.pad_token_id.ok_or(CacheError::NoPadToken)?;
        let mask: Vec<Vec<bool>> = tokens.iter().map(|row| row.iter().map(|token| *token != pad).collect()).collect();
        let (past, batch) = (self.len(), tokens.len());
        let whole = self.append_attention_mask(&mask)?;
        // All rows have the same length, since the mask was accepted.
        if let (false, Ok(tokens)) = (self.frozen, Tokens::new(tokens.to_vec())) {
            self.note_tokens(past, [batch, tokens.shape()[1]], Some(&tokens));
        }
        Ok(whole)
    }

    fn insert_starts(&mut self, starts: &[usize], slot: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        self.check_without_states("hiding positions")?;
        self.check_slots(slot, starts.len())?;
        let held = self.len();
        if let Some(asked) = starts.iter().copied().find(|start| *start > held) {
            return Err(CacheError::TooFew { held, asked });
        }
        self.hidden_before.resize(self.batch(), 0);
        self.hidden_before[slot..slot + starts.len()].copy_from_slice(starts);
        Ok(())
    }

    fn insert_index(&mut self, index: &[usize], slot: usize) -> Result<(), CacheError> {
        self.check_slots(slot, index.len())?;
        let before = self.given_mask.clone();
        for (at, len) in index.iter().enumerate() {
            if let Err(error) = self.truncate_row(slot + at, *len) {
                self.given_mask = before;
                return Err(error);
            }
        }
        Ok(())
    }
}
