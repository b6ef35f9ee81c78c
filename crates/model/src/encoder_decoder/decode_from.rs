//! [`DecodeFrom`]: what a decoder runs on.

use super::{DecoderCache, Encoded};

/// What a decoder runs on: the output of an encoder, or a cache that holds it.
#[derive(Debug)]
pub enum DecodeFrom<'a> {
    /// The output of an encoder.
    Encoded(&'a Encoded),
    /// A cache of the decoder, which the run extends.
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
