//! Storage kinds of a key-value cache.

use std::fmt;

use burn::tensor::{DType, Device};
use serde::{Deserialize, Serialize};

use super::quantized::Bits;
use super::shape::{LARGEST, checked};
use crate::error::CacheError;

/// How a key-value cache stores keys and values. The options combine: a sliding cache may also be quantized, limited in
/// length, or kept in main memory.
///
/// ```
/// # use hooklens::prelude::*;
/// # use hooklens::CacheKind;
/// let model = HookedTransformer::random(TransformerConfig::new(1, 128, 2, 50, 256), 0, &Device::flex())?;
/// let bytes = |kind| {
///     let mut cache = KeyValueCache::of_kind(model.config(), 1, kind)?;
///     model.forward_with(vec![vec![7; 200]], ForwardOptions::new().kv_cache(&mut cache))?;
///     Ok::<_, hooklens::Error>(cache.memory()[0])
/// };
/// assert!(3 * bytes(CacheKind::EIGHT_BIT)? < bytes(CacheKind::GROWING)?);
///
/// let both = CacheKind::GROWING.sliding().quantized(Bits::Four, 32);
/// assert_eq!(both.to_string(), "sliding quantized");
/// # use hooklens::Bits;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheKind {
    max_len: Option<usize>,
    sliding: bool,
    quantization: Option<Quantization>,
    offload: Option<Offload>,
}

/// Bits per element, and number of elements that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Quantization {
    pub(super) bits: Bits,
    pub(super) group: usize,
}

/// Where keys and values are stored between reads.
///
/// ```
/// use hooklens::{CacheKind, Offload};
/// assert_eq!(CacheKind::GROWING.offloaded(Offload::Disk).to_string(), "disk-offloaded");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Offload {
    /// In main memory. A layer is copied to its device while the previous layer computes.
    Memory,
    /// In a temporary file (in the folder given by `TMPDIR`) that disappears with the cache. A layer is read while the
    /// previous layer computes.
    Disk,
}

impl CacheKind {
    /// Stores everything, in memory that grows by half when it is full. The default.
    pub const GROWING: Self = Self { max_len: None, sliding: false, quantization: None, offload: None };
    /// Stores everything, rounded to `bf16`: half the memory of `f32`.
    pub const SIXTEEN_BIT: Self = Self::GROWING.quantized(Bits::Sixteen, 64);
    /// Stores everything, quantized to 8 bits per element with one scale per 64 elements.
    pub const EIGHT_BIT: Self = Self::GROWING.quantized(Bits::Eight, 64);
    /// Stores everything, quantized to 4 bits per element with one scale per 64 elements.
    pub const FOUR_BIT: Self = Self::GROWING.quantized(Bits::Four, 64);

    /// Limits the cache to `max_len` positions and allocates their memory up front; appending more is an error. Like
    /// torchtune's `KVCache` and Hugging Face's `StaticCache`. In a sliding cache, layers with a window allocate the
    /// window instead and have no limit.
    ///
    /// ```
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let kind = CacheKind::GROWING.limited(128);
    /// let cache = KeyValueCache::of_shape(CacheShape::new(1, 2, 4, 16)?, kind)?;
    /// assert_eq!((cache.max_len(), kind.to_string().as_str()), (Some(128), "preallocated"));
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    #[must_use]
    pub const fn limited(mut self, max_len: usize) -> Self {
        self.max_len = Some(max_len);
        self
    }

    /// Number of positions allocated in advance, if any.
    pub(crate) fn allocated_at_once(&self) -> Option<usize> {
        self.max_len.filter(|_| !self.sliding && self.quantization.is_none() && self.offload.is_none())
    }

    /// Drops positions that have left the window: layers with a window keep only what later queries can still see, and
    /// other layers keep everything.
    #[must_use]
    pub const fn sliding(mut self) -> Self {
        self.sliding = true;
        self
    }

    /// Quantizes the stored keys and values; `group` elements of a head share a scale.
    #[must_use]
    pub const fn quantized(mut self, bits: Bits, group: usize) -> Self {
        self.quantization = Some(Quantization { bits, group });
        self
    }

    /// Offloads keys and values from the computing device.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::{CacheKind, Offload};
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let on_disk = CacheKind::GROWING.offloaded(Offload::Disk);
    /// let mut cache = KeyValueCache::of_kind(model.config(), 1, on_disk)?;
    /// model.forward_with("king drum sun star", ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!((cache.len(), cache.memory()), (5, vec![0, 0]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub const fn offloaded(mut self, to: Offload) -> Self {
        self.offload = Some(to);
        self
    }

    /// Maximum number of positions, if limited.
    pub(crate) fn max_len(self) -> Option<usize> {
        self.max_len
    }

    /// Whether layers with a window drop positions that have left it.
    pub(crate) fn is_sliding(self) -> bool {
        self.sliding
    }

    /// Where keys and values are offloaded to, if they are.
    pub(crate) fn offload(self) -> Option<Offload> {
        self.offload
    }

    pub(super) fn quantization(self) -> Option<Quantization> {
        self.quantization
    }

    /// Checks that the combination of options is supported.
    pub(super) fn check(self) -> Result<(), CacheError> {
        self.max_len.map(|max_len| checked("max_len", max_len, LARGEST)).transpose()?;
        self.quantization.map(|quantization| checked("group", quantization.group, LARGEST)).transpose()?;
        if self.quantization.is_some() && self.offload == Some(Offload::Disk) {
            return Err(CacheError::Unsupported { kind: "quantized".into(), operation: "be stored on disk" });
        }
        Ok(())
    }
}

/// Formats as `growing`, `preallocated`, `sliding quantized`, and so on.
impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.max_len.map(|_| "preallocated"),
            self.sliding.then_some("sliding"),
            self.quantization.map(|quantization| match quantization.bits {
                Bits::Sixteen => "16-bit",
                _ => "quantized",
            }),
            self.offload.map(|offload| match offload {
                Offload::Memory => "offloaded",
                Offload::Disk => "disk-offloaded",
            }),
        ];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        if words.is_empty() { f.write_str("growing") } else { f.write_str(&words.join(" ")) }
    }
}

/// Element type and device of the contents.
pub(super) type Form = (DType, Device);
