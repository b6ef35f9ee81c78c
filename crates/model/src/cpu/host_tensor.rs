//! Tensors as `f32` slices in host memory, and new tensors of the same backend. 16-bit tensors are widened to a copy,
//! and results computed from them are rounded back to 16 bits.

use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::{Flex, FlexTensor};
use half::{bf16, f16};
use hooklens_kernels::convert::{to_bf16, to_f16, widen};
use hooklens_kernels::tasks::{CHUNK, each_chunk};
use hooklens_kernels::unwritten::unwritten;

#[cfg(feature = "libtorch")]
use super::torch::TorchMemory;

/// A tensor in host memory, with the lengths and strides of its axes.
pub(super) struct HostTensor {
    memory: Memory,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

enum Memory {
    Flex(FlexTensor),
    #[cfg(feature = "libtorch")]
    Torch(TorchMemory),
    /// A copy in `f32`, row-major.
    Copy(Copied),
}

/// A widened copy of a 16-bit tensor.
struct Copied {
    values: Vec<f32>,
    backend: Backend,
    dtype: DType,
}

/// The backend that a tensor belongs to.
#[derive(Clone, Copy)]
pub(super) enum Backend {
    Flex,
    #[cfg(feature = "libtorch")]
    Torch,
}

impl HostTensor {
    /// The tensor, if it is plain: in host memory, untracked, and of `f32` or a 16-bit type.
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        if !matches!(tensor.dtype(), DType::F32 | DType::BF16 | DType::F16) {
            return None;
        }
        if let Ok(storage) = tensor.clone().try_into_primitive::<Flex>() {
            return Some(match tensor.dtype() {
                DType::F32 => Self::of_flex(storage),
                _ => Self::widened_flex(&storage.to_contiguous()),
            });
        }
        #[cfg(feature = "libtorch")]
        return TorchMemory::of(tensor).map(|memory| match tensor.dtype() {
            DType::F32 => Self::of_torch(memory),
            dtype => Self::widened_torch(&memory.contiguous(), dtype),
        });
        #[cfg(not(feature = "libtorch"))]
        None
    }

    /// Widens a contiguous 16-bit tensor.
    fn widened_flex(storage: &FlexTensor) -> Self {
        let layout = storage.layout();
        let (start, shape) = (layout.start_offset(), layout.shape().to_vec());
        let mut values = unwritten(shape.iter().product());
        let end = start + values.len();
        match storage.dtype() {
            DType::BF16 => widen(&storage.storage::<bf16>()[start..end], &mut values),
            _ => widen(&storage.storage::<f16>()[start..end], &mut values),
        }
        Self::copied(shape, Copied { values, backend: Backend::Flex, dtype: storage.dtype() })
    }

    /// Widens a contiguous 16-bit tensor.
    #[cfg(feature = "libtorch")]
    fn widened_torch(memory: &TorchMemory, dtype: DType) -> Self {
        let shape = memory.layout().0;
        let mut values = unwritten(shape.iter().product());
        match dtype {
            DType::BF16 => widen(memory.elements_of::<bf16>(), &mut values),
            _ => widen(memory.elements_of::<f16>(), &mut values),
        }
        Self::copied(shape, Copied { values, backend: Backend::Torch, dtype })
    }

    fn copied(shape: Vec<usize>, copy: Copied) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        Self { memory: Memory::Copy(copy), shape, strides }
    }

    fn of_flex(storage: FlexTensor) -> Self {
        let layout = storage.layout();
        let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
        Self { memory: Memory::Flex(storage), shape, strides }
    }

    #[cfg(feature = "libtorch")]
    fn of_torch(memory: TorchMemory) -> Self {
        let (shape, strides) = memory.layout();
        Self { memory: Memory::Torch(memory), shape, strides }
    }

    /// Like [`HostTensor::of`], but copied if the last axis does not have unit stride or a stride is negative.
    pub(super) fn rows<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let held = Self::of(tensor)?;
        let unit = held.strides.last().is_none_or(|s| *s == 1);
        Some(if unit && held.is_forward() { held } else { held.contiguous() })
    }

    /// Like [`HostTensor::of`], but copied if not contiguous.
    pub(super) fn whole<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let held = Self::of(tensor)?;
        Some(if held.is_contiguous() { held } else { held.contiguous() })
    }

    /// Whether all strides are nonnegative.
    pub(super) fn is_forward(&self) -> bool {
        self.strides.iter().all(|s| *s >= 0)
    }

    fn is_contiguous(&self) -> bool {
        match &self.memory {
            Memory::Flex(storage) => storage.is_contiguous(),
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => memory.is_contiguous(),
            Memory::Copy(_) => true,
        }
    }

    fn contiguous(self) -> Self {
        match self.memory {
            Memory::Flex(storage) => Self::of_flex(storage.to_contiguous()),
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => Self::of_torch(memory.contiguous()),
            Memory::Copy(copy) => Self::copied(self.shape, copy),
        }
    }

    /// All elements in memory, starting with the tensor's first one. A view may use only some of them.
    pub(super) fn elements(&self) -> &[f32] {
        match &self.memory {
            Memory::Flex(storage) => &storage.storage::<f32>()[storage.layout().start_offset()..],
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => memory.elements(),
            Memory::Copy(copy) => &copy.values,
        }
    }

    /// The elements of a contiguous tensor.
    pub(super) fn run(&self) -> &[f32] {
        &self.elements()[..self.shape.iter().product()]
    }

    /// Length of each axis.
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Stride of an axis in elements.
    pub(super) fn stride(&self, axis: usize) -> usize {
        self.strides[axis].unsigned_abs()
    }

    /// Allocates a new tensor of the same backend and element type, filled with zeros.
    pub(super) fn zeros(&self, len: usize) -> Output {
        let (backend, dtype) = self.kind();
        let memory = match backend {
            Backend::Flex => OutputMemory::Flex(vec![0.0; len]),
            #[cfg(feature = "libtorch")]
            Backend::Torch => {
                let mut memory = TorchMemory::new(len);
                memory.elements_mut().fill(0.0);
                OutputMemory::Torch(memory)
            }
        };
        Output { memory, dtype }
    }

    /// Allocates a new tensor of the same backend and element type. The caller must overwrite every element.
    pub(super) fn blank(&self, len: usize) -> Output {
        let (backend, dtype) = self.kind();
        Output::of(backend, dtype, len)
    }

    fn kind(&self) -> (Backend, DType) {
        match &self.memory {
            Memory::Flex(_) => (Backend::Flex, DType::F32),
            #[cfg(feature = "libtorch")]
            Memory::Torch(_) => (Backend::Torch, DType::F32),
            Memory::Copy(copy) => (copy.backend, copy.dtype),
        }
    }
}

/// An `f32` buffer that becomes a tensor.
pub(super) struct Output {
    memory: OutputMemory,
    /// Element type of the resulting tensor.
    dtype: DType,
}

enum OutputMemory {
    Flex(Vec<f32>),
    #[cfg(feature = "libtorch")]
    Torch(TorchMemory),
}

impl Output {
    /// Allocates a buffer of `len` elements. The caller must overwrite every element.
    pub(super) fn of(backend: Backend, dtype: DType, len: usize) -> Self {
        let memory = match backend {
            Backend::Flex => OutputMemory::Flex(unwritten(len)),
            #[cfg(feature = "libtorch")]
            Backend::Torch => OutputMemory::Torch(TorchMemory::new(len)),
        };
        Self { memory, dtype }
    }

    /// Sets the element type of the result.
    pub(super) fn in_type(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    pub(super) fn elements(&mut self) -> &mut [f32] {
        match &mut self.memory {
            OutputMemory::Flex(values) => values,
            #[cfg(feature = "libtorch")]
            OutputMemory::Torch(memory) => memory.elements_mut(),
        }
    }

    pub(super) fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<D> {
        match self.memory {
            OutputMemory::Flex(values) => flex(values, self.dtype, shape),
            #[cfg(feature = "libtorch")]
            OutputMemory::Torch(memory) if self.dtype == DType::F32 => memory.tensor(shape),
            #[cfg(feature = "libtorch")]
            OutputMemory::Torch(memory) => memory.tensor(shape).cast(self.dtype),
        }
    }
}

/// A Flex tensor of these values, rounded to `dtype`.
fn flex<const D: usize>(values: Vec<f32>, dtype: DType, shape: [usize; D]) -> Tensor<D> {
    let data = match dtype {
        DType::BF16 => {
            let mut rounded = vec![bf16::ZERO; values.len()];
            to_bf16(&values, &mut rounded);
            TensorData::new(rounded, shape)
        }
        DType::F16 => {
            let mut rounded = vec![f16::ZERO; values.len()];
            to_f16(&values, &mut rounded);
            TensorData::new(rounded, shape)
        }
        _ => TensorData::new(values, shape),
    };
    Tensor::from_primitive::<Flex>(FlexTensor::from_data(data))
}

/// Changes every element, in place if there is no other handle to the tensor, else in a copy. Returns the tensor
/// unchanged as an error if it is not plain.
pub(super) fn in_place<const D: usize>(given: Tensor<D>, change: impl Fn(&mut [f32])) -> Result<Tensor<D>, Tensor<D>> {
    in_place_or_to(given, &change, |from, to| {
        to.copy_from_slice(from);
        change(to);
    })
}

/// Like [`in_place`], for a `change` of each element that does not depend on the others.
pub(super) fn in_place_by_element<const D: usize>(
    given: Tensor<D>,
    change: impl Fn(&mut [f32]) + Send + Sync,
) -> Result<Tensor<D>, Tensor<D>> {
    in_place_or_to(given, &change, |from, to| {
        // Each part is changed while it is in the cache.
        each_chunk(from, to, CHUNK, |from, to| {
            to.copy_from_slice(from);
            change(to);
        });
    })
}

/// Like [`in_place`], but if elements can't be changed in place, `write` writes the changed ones to a new buffer.
pub(super) fn in_place_or_to<const D: usize>(
    given: Tensor<D>,
    change: impl FnOnce(&mut [f32]),
    write: impl FnOnce(&[f32], &mut [f32]),
) -> Result<Tensor<D>, Tensor<D>> {
    let Some(held) = HostTensor::of(&given) else { return Err(given) };
    let shape = given.dims();
    // Drop this handle, so that `held` may be the only one.
    drop(given);
    let held = match held.memory {
        Memory::Flex(mut storage) => {
            let len = storage.layout().num_elements();
            let own = storage.is_unique() && storage.is_contiguous() && storage.layout().start_offset() == 0;
            if own && storage.storage::<f32>().len() == len {
                change(storage.storage_mut::<f32>());
                return Ok(Tensor::from_primitive::<Flex>(storage));
            }
            HostTensor::of_flex(storage)
        }
        #[cfg(feature = "libtorch")]
        Memory::Torch(mut memory) => {
            if memory.is_own() {
                change(memory.elements_mut());
                return Ok(memory.tensor(shape));
            }
            HostTensor::of_torch(memory)
        }
        memory @ Memory::Copy(_) => HostTensor { memory, ..held },
    };
    let held = if held.is_contiguous() { held } else { held.contiguous() };
    let values = held.run();
    let mut output = held.blank(values.len());
    write(values, output.elements());
    Ok(output.tensor(shape))
}
