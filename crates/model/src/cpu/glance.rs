//! Where a tensor is in this machine's memory, and some of its values: whether it is still the same, without reading it all.

use std::hash::Hasher;

use burn::tensor::{DType, Tensor};
use burn_flex::Flex;
use half::{bf16, f16};

#[cfg(feature = "libtorch")]
use super::torch::TorchMemory;

/// Values that are looked at, spread over the tensor: more of a small one, which is in memory anyway.
const VALUES: usize = 32;
const VALUES_OF_LARGE: usize = 8;
const LARGE: usize = 1 << 20;

/// How far to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The address alone: a mapped file need not be read.
    Address,
    /// Some values, too.
    Values,
}

/// Adds a tensor's address and some of its values. A tensor elsewhere, on a GPU for instance, is not looked at: that
/// would have to wait for the device.
pub(crate) fn glance<const D: usize>(tensor: Tensor<D>, depth: Depth, hash: &mut impl Hasher) {
    let dtype = tensor.dtype();
    #[cfg(feature = "libtorch")]
    if let Some(memory) = TorchMemory::of(&tensor) {
        return match dtype {
            DType::F32 => look(memory.elements_of::<f32>(), |value| u64::from(value.to_bits()), depth, hash),
            DType::BF16 => look(memory.elements_of::<bf16>(), |value| u64::from(value.to_bits()), depth, hash),
            DType::F16 => look(memory.elements_of::<f16>(), |value| u64::from(value.to_bits()), depth, hash),
            _ => {}
        };
    }
    let Ok(storage) = tensor.try_into_primitive::<Flex>() else { return };
    match dtype {
        DType::F32 => look(storage.storage::<f32>(), |value| u64::from(value.to_bits()), depth, hash),
        DType::F64 => look(storage.storage::<f64>(), |value| value.to_bits(), depth, hash),
        DType::BF16 => look(storage.storage::<bf16>(), |value| u64::from(value.to_bits()), depth, hash),
        DType::F16 => look(storage.storage::<f16>(), |value| u64::from(value.to_bits()), depth, hash),
        _ => {}
    }
}

fn look<T: Copy>(values: &[T], bits: impl Fn(T) -> u64, depth: Depth, hash: &mut impl Hasher) {
    hash.write_usize(values.as_ptr() as usize);
    if depth == Depth::Address {
        return;
    }
    let count = if values.len() > LARGE { VALUES_OF_LARGE } else { VALUES };
    // One of each stretch, at another place in each, so that no column of a matrix is passed over.
    let stretch = (values.len() / count).max(1);
    for number in 0..count.min(values.len()) {
        let within = number.wrapping_mul(0x9e37_79b9) % stretch;
        hash.write_u64(bits(values[number * stretch + within]));
    }
}
