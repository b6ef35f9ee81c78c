//! Cache of the decoder: keys and values for the decoder's positions and for the encoder's.

use burn::tensor::Tensor;

use super::HookedEncoderDecoder;
use super::forward::Encoded;
use crate::error::CacheError;
use crate::kv_cache::{KeyValueCache, select_rows};

/// Keys and values of the encoder's positions, one pair per layer.
pub(super) type CrossKeys = Vec<(Tensor<4>, Tensor<4>)>;

/// Cached keys and values of the decoder. For self-attention, they belong to the tokens decoded so far; for
/// cross-attention, to the encoder's positions. The first run computes the keys and values for
/// cross-attention, which then never change.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
/// let mut cache = model.decoder_cache(encoded);
/// for token in [0, 4, 9] {
///     model.decode(&mut cache, vec![vec![token]])?; // one token at a time
/// }
/// assert_eq!(cache.own().len(), 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DecoderCache {
    /// Keys and values of the decoder's own positions.
    pub(crate) own: KeyValueCache,
    /// Keys and values of the encoder's positions; empty before the first run.
    pub(super) cross: CrossKeys,
    pub(super) encoded: Encoded,
}

impl DecoderCache {
    /// Keys and values of the decoder's own positions.
    pub fn own(&self) -> &KeyValueCache {
        &self.own
    }

    /// Keeps only these rows, in this order, together with the encoder's output that they are decoded from. A row can
    /// be given several times, as in beam search.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let encoded = model.encode(vec![vec![5, 6, 7, 1], vec![8, 9, 3, 1]])?;
    /// let mut cache = model.decoder_cache(encoded);
    /// model.decode(&mut cache, vec![vec![0], vec![0]])?;
    /// cache.select_rows(&[1, 1])?;
    /// let logits = model.decode(&mut cache, vec![vec![4], vec![4]])?.logits; // both decode the second input
    /// # assert!(logits.is_some());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`KeyValueCache::select_rows`].
    pub fn select_rows(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        self.own.select_rows(rows)?;
        self.encoded = self.encoded.selected(rows);
        for (keys, values) in &mut self.cross {
            *keys = select_rows(keys.clone(), rows);
            *values = select_rows(values.clone(), rows);
        }
        Ok(())
    }
}

#[cfg(test)]
impl DecoderCache {
    /// Number of layers whose cross-attention keys and values are cached.
    pub(crate) fn cross_layers(&self) -> usize {
        self.cross.len()
    }
}

impl HookedEncoderDecoder {
    /// Creates an empty cache for decoding from this encoder output.
    pub fn decoder_cache(&self, encoded: Encoded) -> DecoderCache {
        let own = KeyValueCache::new(&self.decoder_stack, encoded.shape()[0]);
        DecoderCache { own, cross: Vec::new(), encoded }
    }
}
