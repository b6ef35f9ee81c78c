//! [`DecodeFrom`]: the encoder output or cache that a decoder runs on.

use super::{DecoderCache, Encoded};

/// Source of the encoder output that a decoder attends to: the output itself, or a cache that holds it.
#[derive(Debug)]
pub enum DecodeFrom<'a> {
    /// The output of an encoder.
    Encoded(&'a Encoded),
    /// A cache of the decoder. The run appends to it unless it is frozen.
    Cache(&'a mut DecoderCache),
}

impl<'a> From<&'a Encoded> for DecodeFrom<'a> {
    fn from(encoded: &'a Encoded) -> Self {
        Self::Encoded(encoded)
    }
}

impl<'a> From<&'a mut DecoderCache> for DecodeFrom<'a> {
    fn from(cache: &'a mut DecoderCache) -> Self {
        Self::Cache(cache)
    }
}
