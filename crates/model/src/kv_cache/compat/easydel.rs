//! Names of EasyDeL's cache.

use crate::error::CacheError;
use crate::kv_cache::KeyValueCache;
use crate::tokens::Tokens;

/// Functions of EasyDeL's `TransformerCache` and its views.
pub trait EasyDelCache {
    /// Column of each row's first position that is visible to attention (the number of columns if there is none).
    fn starts(&self) -> Vec<usize>;

    /// Like [`KeyValueCache::append_attention_mask`], with the mask computed from tokens: all are unmasked
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
    /// Same as [`KeyValueCache::append_attention_mask`], and [`CacheError::NoPadToken`].
    fn append_tokens(&mut self, tokens: &[Vec<u32>]) -> Result<Vec<Vec<bool>>, CacheError>;

    /// Hides the columns before a start column in each row from `slot` on. This only affects attention: all tokens keep
    /// their positions, so cached rotated keys remain valid. (To renumber the remaining tokens, run them again.) A
    /// smaller start column reveals columns that were hidden before.
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
    /// [`CacheError::Frozen`], [`CacheError::Slot`], or [`CacheError::TooFew`] if a start is beyond the cached columns.
    fn insert_starts(&mut self, starts: &[usize], slot: usize) -> Result<(), CacheError>;

    /// Sets the number of positions that each row from `slot` on keeps, from its first. The columns
    /// after them remain, as padding; a row's next token has the given number as its position.
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
    /// [`CacheError::Frozen`], [`CacheError::Slot`], [`CacheError::Slots`], [`CacheError::TooFew`] for a row that has
    /// fewer positions, or [`CacheError::Dropped`] and [`CacheError::State`] as in [`KeyValueCache::truncate`]. The
    /// cache is then unchanged.
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
