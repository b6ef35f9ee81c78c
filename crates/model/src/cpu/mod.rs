//! Fast paths that run the kernels of `hooklens-kernels` on plain tensors.
//!
//! A tensor is plain if it is in this machine's memory (Burn's Flex backend, or LibTorch on the CPU), of `f32` or a
//! 16-bit type, and not tracked by autodiff; functions that accept tracked tensors say so. The kernels were measured to
//! be faster than either backend's own operations. For all other tensors, these functions return `None` or the tensor
//! itself, and the caller falls back to Burn's operations.

mod attention;
mod function;
mod gather;
mod glance;
mod host_matrix;
mod host_tensor;
mod latents;
mod linear;
mod norm;
pub mod packed_matrix;
mod pairwise;
#[cfg(feature = "libtorch")]
#[allow(deprecated, reason = "Burn is pinned to the last release series that supports LibTorch")]
#[allow(unsafe_code, reason = "LibTorch's memory is accessed through pointers; each access states why it is sound")]
mod torch;
mod tracked;

use burn::tensor::Tensor;
use burn_flex::Flex;

use host_matrix::HostMatrix;
use host_tensor::{HostTensor, in_place, in_place_by_element, in_place_or_to};

pub(crate) use attention::{Rules, attention, mix, scores, softmax};
pub(crate) use function::activation;
pub use gather::gather;
pub(crate) use glance::{Depth, glance};
pub use latents::{combine, keep, not_finite};
pub use linear::{Weight, linear};
pub(crate) use norm::{norm, norm_and_scale};
pub(crate) use pairwise::{product, sum};
#[cfg(feature = "libtorch")]
pub use torch::OneThread;
pub(crate) use tracked::tracked;

/// Whether a matrix of the Flex backend is stored in column-major order.
pub(crate) fn lies_transposed(matrix: &Tensor<2>) -> bool {
    let [_, columns] = matrix.dims();
    let storage = matrix.clone().try_into_primitive::<Flex>();
    columns > 1 && storage.is_ok_and(|storage| storage.layout().strides()[0] == 1 && storage.layout().strides()[1] > 1)
}
