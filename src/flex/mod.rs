//! Where a tensor is plain `f32` on the CPU (Burn's Flex backend, no autodiff), the kernels of
//! `hooklens-kernels` do the work, measured faster than Burn's own; anywhere else these
//! functions decline, and Burn's operations do it.

mod attention;
mod function;
mod linear;
mod norm;

use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::{Flex, FlexTensor};

pub(crate) use attention::{attention, mix, scores, softmax};
pub(crate) use function::activation;
pub(crate) use linear::linear;
pub(crate) use norm::{norm, norm_parts};

/// The tensor's storage, if it is plain `f32` on the CPU.
fn plain<const D: usize>(tensor: &Tensor<D>) -> Option<FlexTensor> {
    if tensor.dtype() != DType::F32 {
        return None;
    }
    tensor.clone().try_into_primitive::<Flex>().ok()
}

/// Whether a matrix on the CPU lies in memory column by column.
pub(crate) fn lies_transposed(matrix: &Tensor<2>) -> bool {
    let [_, columns] = matrix.dims();
    let storage = matrix.clone().try_into_primitive::<Flex>();
    columns > 1 && storage.is_ok_and(|storage| storage.layout().strides()[0] == 1 && storage.layout().strides()[1] > 1)
}

/// [`plain`], with rows of unit stride: copied if they are not.
fn plain_rows<const D: usize>(tensor: &Tensor<D>) -> Option<FlexTensor> {
    let storage = plain(tensor)?;
    let unit = storage.layout().strides().last().is_none_or(|s| *s == 1);
    let forward = storage.layout().strides().iter().all(|s| *s >= 0);
    Some(if unit && forward { storage } else { storage.to_contiguous() })
}

/// [`plain`], as one run of elements: copied if it is not.
fn plain_whole<const D: usize>(tensor: &Tensor<D>) -> Option<FlexTensor> {
    let storage = plain(tensor)?;
    Some(if storage.is_contiguous() { storage } else { storage.to_contiguous() })
}

/// All elements from the first of the tensor on; views may leave some at the end unused.
fn elements(storage: &FlexTensor) -> &[f32] {
    &storage.storage::<f32>()[storage.layout().start_offset()..]
}

/// The elements of a tensor that is one run.
fn whole(storage: &FlexTensor) -> &[f32] {
    &elements(storage)[..storage.layout().num_elements()]
}

/// Stride of an axis in elements.
fn stride(storage: &FlexTensor, axis: usize) -> usize {
    storage.layout().strides()[axis].unsigned_abs()
}

/// A tensor of these elements.
fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(FlexTensor::from_data(TensorData::new(values, shape)))
}

/// Changes every element in place if no one else holds the tensor, else a copy. Hands the tensor
/// back if it is not plain.
fn in_place<const D: usize>(given: Tensor<D>, change: impl FnOnce(&mut [f32])) -> Result<Tensor<D>, Tensor<D>> {
    let Some(mut storage) = plain(&given) else { return Err(given) };
    let shape = given.dims();
    // Now `storage` may be the only handle.
    drop(given);
    let len = storage.layout().num_elements();
    let own = storage.is_unique() && storage.is_contiguous() && storage.layout().start_offset() == 0;
    if own && storage.storage::<f32>().len() == len {
        change(storage.storage_mut::<f32>());
        return Ok(Tensor::from_primitive::<Flex>(storage));
    }
    let storage = if storage.is_contiguous() { storage } else { storage.to_contiguous() };
    let mut values = whole(&storage).to_vec();
    change(&mut values);
    Ok(tensor(values, shape))
}
