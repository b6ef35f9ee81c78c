//! Cache of the decoder: keys and values for the decoder's positions and for the encoder's.

use burn::tensor::Tensor;

use super::HookedEncoderDecoder;
use super::forward::Encoded;
use crate::kv_cache::KeyValueCache;

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
/// assert_eq!(cache.own.len(), 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DecoderCache {
    /// Keys and values of the decoder's own positions.
    pub own: KeyValueCache,
    /// Keys and values of the encoder's positions; empty before the first run.
    pub(super) cross: CrossKeys,
    pub(super) encoded: Encoded,
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
