//! Elements that are no finite numbers, in what is about to be written.

use half::{bf16, f16};
use safetensors::Dtype;

use super::placing::FileTensor;

impl FileTensor {
    /// The first element that is not finite, its place and value; minus infinity is none where queries may not look
    /// (`masked`).
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
    // The exponent lies in the last two bytes of each of the three types.
    let strange = |element: &[u8; N]| u16::from_le_bytes([element[N - 2], element[N - 1]]) & exponent == exponent;
    // Nearly always there is none, and this loop is all there is.
    if !elements.iter().fold(false, |any, element| any | strange(element)) {
        return None;
    }
    let mut values = elements.iter().map(value).enumerate();
    let is_sound = |value: f32| value.is_finite() || (masked && value == f32::NEG_INFINITY);
    values.find(|(_, value)| !is_sound(*value))
}
