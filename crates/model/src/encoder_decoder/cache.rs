//! The decoder's cache: keys and values of its own positions and of the encoder's.

use burn::tensor::Tensor;

use super::HookedEncoderDecoder;
use super::forward::Encoded;
use crate::kv_cache::KeyValueCache;

/// Keys and values of the encoder's positions, a pair a layer.
pub(super) type CrossKeys = Vec<(Tensor<4>, Tensor<4>)>;

/// Keys and values of both attentions: those of the tokens decoded so far, and, from the first run on, those of
/// the encoder's positions, which never change.
///
/// ```
/// # use hooklens::encoder_decoder::HookedEncoderDecoder;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let encoded = model.encode(vec![vec![5, 6, 7, 1]])?;
/// let mut cache = model.decoder_cache(encoded);
/// for token in [0, 4, 9] {
///     model.decode_cached(&mut cache, vec![vec![token]])?; // one token at a time
/// }
/// assert_eq!((cache.own.len(), cache.encoded().shape()), (3, [1, 4]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DecoderCache {
    /// Keys and values of the decoder's own positions.
    pub own: KeyValueCache,
    /// Those of the encoder's positions; empty before the first run.
    pub(super) cross: CrossKeys,
    pub(super) encoded: Encoded,
}

impl DecoderCache {
    /// The encoder's output.
    pub fn encoded(&self) -> &Encoded {
        &self.encoded
    }

    /// Layers whose keys and values of the encoder's positions are held.
    #[cfg(test)]
    pub(crate) fn cross_layers(&self) -> usize {
        self.cross.len()
    }
}

impl HookedEncoderDecoder {
    /// An empty cache for decoding texts of these inputs.
    pub fn decoder_cache(&self, encoded: Encoded) -> DecoderCache {
        let own = KeyValueCache::new(&self.decoder_stack, encoded.shape()[0]);
        DecoderCache { own, cross: Vec::new(), encoded }
    }
}
