//! Finds non-finite elements in tensors about to be written.

use half::{bf16, f16};
use safetensors::Dtype;

use super::placing::FileTensor;

impl FileTensor {
    /// Index and value of the first non-finite element. If `masked`, minus infinity is allowed, as in masked attention
    /// scores.
    pub(super) fn first_non_finite(&self, masked: bool) -> Option<(usize, f32)> {
        let bytes: &[u8] = &self.bytes;
        match self.dtype {
            Dtype::F32 => first(bytes.as_chunks::<4>().0, 0x7f80, masked, |e| f32::from_le_bytes(*e)),
            Dtype::F16 => first(bytes.as_chunks::<2>().0, 0x7c00, masked, |e| f16::from_le_bytes(*e).to_f32()),
            Dtype::BF16 => first(bytes.as_chunks::<2>().0, 0x7f80, masked, |e| bf16::from_le_bytes(*e).to_f32()),
            _ => None,
        }
    }
}

fn first<const N: usize>(
    elements: &[[u8; N]],
    exponent: u16,
    masked: bool,
    value: impl Fn(&[u8; N]) -> f32,
) -> Option<(usize, f32)> {
    // The last two bytes contain the exponent in all three types.
    let strange = |element: &[u8; N]| u16::from_le_bytes([element[N - 2], element[N - 1]]) & exponent == exponent;
    // Fast path: nearly always every element is finite.
    if !elements.iter().fold(false, |any, element| any | strange(element)) {
        return None;
    }
    let mut values = elements.iter().map(value).enumerate();
    let is_sound = |value: f32| value.is_finite() || (masked && value == f32::NEG_INFINITY);
    values.find(|(_, value)| !is_sound(*value))
}
