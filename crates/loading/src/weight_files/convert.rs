//! Converts elements from a file's element type to the type that a model computes in.

use burn::tensor::Bytes;
use half::{bf16, f16};
use hooklens_hooks::DType;

/// Elements converted so far.
pub(crate) enum Converted {
    F64(Vec<f64>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Converted {
    pub(crate) fn with_capacity(dtype: DType, elements: usize) -> Self {
        match dtype {
            DType::F64 => Self::F64(Vec::with_capacity(elements)),
            DType::F16 => Self::F16(Vec::with_capacity(elements)),
            DType::BF16 => Self::BF16(Vec::with_capacity(elements)),
            _ => Self::F32(Vec::with_capacity(elements)),
        }
    }

    /// Appends the elements in `bytes`, which have type `stored`.
    pub(crate) fn extend(&mut self, bytes: &[u8], stored: DType) {
        match (self, stored) {
            (Self::F64(out), _) => each(bytes, stored, |x| out.push(x)),
            (Self::F32(out), DType::F32) => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            (Self::F32(out), _) => each(bytes, stored, |x| out.push(x as f32)),
            (Self::F16(out), _) => each(bytes, stored, |x| out.push(f16::from_f64(x))),
            (Self::BF16(out), _) => each(bytes, stored, |x| out.push(bf16::from_f64(x))),
        }
    }

    /// Appends these elements.
    pub(crate) fn extend_floats(&mut self, floats: &[f32]) {
        match self {
            Self::F64(out) => out.extend(floats.iter().map(|x| f64::from(*x))),
            Self::F32(out) => out.extend_from_slice(floats),
            Self::F16(out) => out.extend(floats.iter().map(|x| f16::from_f32(*x))),
            Self::BF16(out) => out.extend(floats.iter().map(|x| bf16::from_f32(*x))),
        }
    }

    /// Returns the elements if they are `f32`, else an empty vector.
    pub(crate) fn into_floats(self) -> Vec<f32> {
        if let Self::F32(floats) = self { floats } else { Vec::new() }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::F64(v) => Bytes::from_elems(v),
            Self::F32(v) => Bytes::from_elems(v),
            Self::F16(v) => Bytes::from_elems(v),
            Self::BF16(v) => Bytes::from_elems(v),
        }
    }
}

/// Calls `f` with each element as `f64`, which represents every supported type exactly.
fn each(bytes: &[u8], stored: DType, mut f: impl FnMut(f64)) {
    match stored {
        DType::F64 => bytes.as_chunks::<8>().0.iter().for_each(|b| f(f64::from_le_bytes(*b))),
        DType::F16 => bytes.as_chunks::<2>().0.iter().for_each(|b| f(f16::from_le_bytes(*b).to_f64())),
        DType::BF16 => bytes.as_chunks::<2>().0.iter().for_each(|b| f(bf16::from_le_bytes(*b).to_f64())),
        _ => bytes.as_chunks::<4>().0.iter().for_each(|b| f(f64::from(f32::from_le_bytes(*b)))),
    }
}
