//! Where a tensor is plain `f32` in this machine's memory (Burn's Flex backend, or LibTorch's on the CPU; no
//! autodiff), a matrix of weights also of 16 bits, the kernels of `hooklens-kernels` do the work, measured faster than either backend's own; anywhere
//! else these functions decline, and Burn's operations do it.

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
#[allow(deprecated, reason = "the last line of Burn that has LibTorch is pinned")]
#[allow(unsafe_code, reason = "LibTorch's memory is reached by pointers; the arguments stand at each")]
mod torch;
mod tracked;

use burn::tensor::Tensor;
use burn_flex::Flex;

use host_matrix::HostMatrix;
use host_tensor::{HostTensor, in_place};

pub(crate) use attention::{Rules, attention, mix, scores, softmax};
pub(crate) use function::activation;
pub use gather::gather;
pub(crate) use glance::{Depth, glance};
pub use latents::{combine, keep, not_finite};
pub use linear::{Weight, linear};
pub(crate) use norm::{norm, norm_and_scale};
pub(crate) use pairwise::{product, sum};
#[cfg(feature = "libtorch")]
pub(crate) use torch::OneThread;
pub(crate) use tracked::tracked;

/// Whether a matrix of the Flex backend lies in memory column by column.
pub(crate) fn lies_transposed(matrix: &Tensor<2>) -> bool {
    let [_, columns] = matrix.dims();
    let storage = matrix.clone().try_into_primitive::<Flex>();
    columns > 1 && storage.is_ok_and(|storage| storage.layout().strides()[0] == 1 && storage.layout().strides()[1] > 1)
}
