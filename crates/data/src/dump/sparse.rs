//! Sparse storage of latents in a dump.

use burn::tensor::Bytes;
use hooklens_hooks::Axis;
use safetensors::Dtype;

use super::placing::FileTensor;

/// Splits a tensor whose last axis is a dictionary's latents into four: `.indices` and `.values` of the nonzero
/// entries, `.offsets` of each row's first entry (and the last row's end), and the `.shape` of the whole tensor. Other
/// tensors are returned unchanged.
pub(super) fn by_entries(tensor: FileTensor, axes: &[Axis]) -> Vec<FileTensor> {
    if axes.last() != Some(&Axis::Feature) {
        return vec![tensor];
    }
    let size = if tensor.dtype == Dtype::F32 { 4 } else { 2 };
    let latents = tensor.shape.last().copied().unwrap_or(1).max(1);
    let (mut indices, mut values, mut offsets) = (Vec::new(), Vec::new(), 0i64.to_le_bytes().to_vec());
    for row in tensor.bytes.chunks_exact(latents * size) {
        for (latent, value) in row.chunks_exact(size).enumerate() {
            // Skip positive and negative zeros.
            if value[..size - 1].iter().any(|byte| *byte != 0) || value[size - 1] & 0x7f != 0 {
                indices.extend((latent as i32).to_le_bytes());
                values.extend(value);
            }
        }
        offsets.extend(((values.len() / size) as i64).to_le_bytes());
    }
    let whole: Vec<u8> = tensor.shape.iter().flat_map(|len| (*len as i64).to_le_bytes()).collect();
    let part = |part: &str, dtype: Dtype, size: usize, bytes: Vec<u8>| FileTensor {
        name: format!("{}.{part}", tensor.name),
        dtype,
        shape: vec![bytes.len() / size],
        bytes: Bytes::from_bytes_vec(bytes),
    };
    vec![
        part("indices", Dtype::I32, 4, indices),
        part("values", tensor.dtype, size, values),
        part("offsets", Dtype::I64, 8, offsets),
        part("shape", Dtype::I64, 8, whole),
    ]
}
