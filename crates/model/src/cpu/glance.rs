//! Hashing of a tensor's address and a sample of its values, to detect changes without reading all of it.

use std::hash::Hasher;

use burn::tensor::{DType, Tensor};
use burn_flex::Flex;
use half::{bf16, f16};

#[cfg(feature = "libtorch")]
use super::torch::TorchMemory;

/// Number of sampled values, spread over the tensor.
const VALUES: usize = 32;
/// Number of sampled values of a large tensor, whose values may have to be read from disk.
const VALUES_OF_LARGE: usize = 8;
/// Number of elements above which a tensor counts as large.
const LARGE: usize = 1 << 20;

/// What to include in the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Only the address, so that a mapped file need not be read.
    Address,
    /// Also a sample of the values.
    Values,
}

/// Hashes a tensor's address and a sample of its values. Tensors on other devices such as GPUs are ignored, because
/// reading them would have to wait for the device.
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
    // Sample one value per section of the tensor at varying offsets, so that no column of a matrix is always missed.
    let stretch = (values.len() / count).max(1);
    for number in 0..count.min(values.len()) {
        let within = number.wrapping_mul(0x9e37_79b9) % stretch;
        hash.write_u64(bits(values[number * stretch + within]));
    }
}
