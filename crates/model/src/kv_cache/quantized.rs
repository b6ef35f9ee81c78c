//! Keys and values rounded to 16 bits per element, or quantized to 8 or 4.
//!
//! With 16 bits, each element is a `bf16`. With fewer bits, the elements of a head are divided into groups. A group
//! stores its minimum and step, and each element stores the number of steps above the minimum. Groups do not span
//! positions, so stored values are never requantized.

use burn::tensor::{Device, Tensor};

use super::codes::Codes;
use super::kind::{Form, Quantization};
use super::packed::Packed;
use crate::device::in_main_memory;
use crate::error::CacheError;

/// Bits per quantized element.
///
/// ```
/// use hooklens::{Bits, CacheKind};
/// assert_eq!(CacheKind::FOUR_BIT, CacheKind::GROWING.quantized(Bits::Four, 64));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Bits {
    /// 16 bits: each element rounded to `bf16`, without groups.
    Sixteen,
    /// 8 bits: 256 levels per group.
    Eight,
    /// 4 bits: 16 levels per group.
    Four,
}

impl Bits {
    /// Number of bits.
    pub(super) fn count(self) -> usize {
        match self {
            Bits::Sixteen => 16,
            Bits::Eight => 8,
            Bits::Four => 4,
        }
    }

    /// Number of steps from a group's minimum to its maximum.
    pub(super) fn steps(self) -> f32 {
        ((1u32 << self.count()) - 1) as f32
    }

    pub(super) fn bytes(self, elements: usize) -> usize {
        (elements * self.count()).div_ceil(8)
    }
}

/// Quantized keys and values.
#[derive(Debug, Clone)]
pub(super) struct Quantized {
    quantization: Quantization,
    /// Whether the contents are stored in main memory even if the model runs on another device.
    offloaded: bool,
    held: Held,
}

/// Contents: bytes in main memory, or integer tensors on another device.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one per layer")]
enum Held {
    Codes(Codes),
    Packed(Packed),
}

impl Quantized {
    pub(super) fn new(quantization: Quantization, offloaded: bool) -> Self {
        Self { quantization, offloaded, held: Held::Codes(Codes::new(quantization)) }
    }

    /// Creates an empty store of the same kind.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.quantization, self.offloaded)
    }

    pub(super) fn len(&self) -> usize {
        match &self.held {
            Held::Codes(codes) => codes.len(),
            Held::Packed(packed) => packed.len(),
        }
    }

    pub(super) fn form(&self) -> Option<Form> {
        match &self.held {
            Held::Codes(codes) => codes.form(),
            Held::Packed(packed) => packed.form(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.held {
            Held::Codes(codes) => codes.bytes(),
            Held::Packed(packed) => packed.bytes(),
        }
    }

    /// Appends keys and values.
    pub(super) fn push(&mut self, new: [Tensor<4>; 2]) -> Result<(), CacheError> {
        if self.len() == 0 {
            self.held = match self.is_packed_on(&new[0].device()) {
                true => Held::Packed(Packed::new(self.quantization)),
                false => Held::Codes(Codes::new(self.quantization)),
            };
        }
        match &mut self.held {
            Held::Codes(codes) => codes.push(new),
            Held::Packed(packed) => {
                packed.push(new);
                Ok(())
            }
        }
    }

    fn is_packed_on(&self, device: &Device) -> bool {
        !self.offloaded && !in_main_memory(device) && Packed::is_possible(self.quantization, device)
    }

    /// Drops all but the last `keep` positions.
    pub(super) fn keep_last(&mut self, keep: usize) {
        match &mut self.held {
            Held::Codes(codes) => codes.keep_last(keep),
            Held::Packed(packed) => packed.keep_last(keep),
        }
    }

    /// Dequantizes keys and values to their original element type.
    pub(super) fn read(&self) -> Option<[Tensor<4>; 2]> {
        match &self.held {
            Held::Codes(codes) => codes.read(),
            Held::Packed(packed) => packed.read(),
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        match &mut self.held {
            Held::Codes(codes) => codes.truncate(len),
            Held::Packed(packed) => packed.truncate(len),
        }
    }

    /// A copy with these rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        let held = match &self.held {
            Held::Codes(codes) => Held::Codes(codes.select(rows)),
            Held::Packed(packed) => Held::Packed(packed.select(rows)),
        };
        Self { held, ..self.emptied() }
    }
}
