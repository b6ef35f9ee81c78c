//! Tensors as vectors in host memory.

use burn::tensor::{DType, Tensor};

/// A tensor's values in host memory, in row-major order.
pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.cast(DType::F32).into_data();
    match data.as_slice::<f32>() {
        // Moves the buffer instead of converting element by element.
        Ok(_) => data.try_into_vec().unwrap_or_default(),
        Err(_) => data.iter().collect(),
    }
}
