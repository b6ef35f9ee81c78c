//! Tensors as slices of host memory, and new tensors of the same backend.

use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::{Flex, FlexTensor};

#[cfg(feature = "libtorch")]
use super::torch::TorchMemory;

/// A tensor's memory, with the lengths and strides of its axes.
pub(super) struct HostTensor {
    memory: Memory,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

enum Memory {
    Flex(FlexTensor),
    #[cfg(feature = "libtorch")]
    Torch(TorchMemory),
}

impl HostTensor {
    /// The tensor's memory, if it is plain `f32` on the CPU.
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        if let Ok(storage) = tensor.clone().try_into_primitive::<Flex>() {
            return Some(Self::of_flex(storage));
        }
        #[cfg(feature = "libtorch")]
        return TorchMemory::of(tensor).map(Self::of_torch);
        #[cfg(not(feature = "libtorch"))]
        None
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

    /// [`HostTensor::of`], with rows of unit stride: copied if they are not.
    pub(super) fn rows<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let held = Self::of(tensor)?;
        let unit = held.strides.last().is_none_or(|s| *s == 1);
        Some(if unit && held.is_forward() { held } else { held.contiguous() })
    }

    /// [`HostTensor::of`], contiguous: copied if it is not.
    pub(super) fn whole<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let held = Self::of(tensor)?;
        Some(if held.is_contiguous() { held } else { held.contiguous() })
    }

    /// Whether no axis runs backwards.
    pub(super) fn is_forward(&self) -> bool {
        self.strides.iter().all(|s| *s >= 0)
    }

    fn is_contiguous(&self) -> bool {
        match &self.memory {
            Memory::Flex(storage) => storage.is_contiguous(),
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => memory.is_contiguous(),
        }
    }

    fn contiguous(self) -> Self {
        match self.memory {
            Memory::Flex(storage) => Self::of_flex(storage.to_contiguous()),
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => Self::of_torch(memory.contiguous()),
        }
    }

    /// All elements from the first of the tensor on; views may leave some at the end unused.
    pub(super) fn elements(&self) -> &[f32] {
        match &self.memory {
            Memory::Flex(storage) => &storage.storage::<f32>()[storage.layout().start_offset()..],
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => memory.elements(),
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

    /// Memory for a new tensor of the same backend, holding `value` everywhere.
    pub(super) fn output(&self, len: usize, value: f32) -> Output {
        match &self.memory {
            Memory::Flex(_) => Output::Flex(vec![value; len]),
            #[cfg(feature = "libtorch")]
            Memory::Torch(_) => {
                let mut memory = TorchMemory::new(len);
                memory.elements_mut().fill(value);
                Output::Torch(memory)
            }
        }
    }

    /// Memory for a new tensor of the same backend, whose every element the caller overwrites.
    pub(super) fn blank(&self, len: usize) -> Output {
        match &self.memory {
            Memory::Flex(_) => Output::Flex(vec![0.0; len]),
            #[cfg(feature = "libtorch")]
            Memory::Torch(_) => Output::Torch(TorchMemory::new(len)),
        }
    }
}

/// Memory that is to become a tensor.
pub(super) enum Output {
    Flex(Vec<f32>),
    #[cfg(feature = "libtorch")]
    Torch(TorchMemory),
}

impl Output {
    pub(super) fn elements(&mut self) -> &mut [f32] {
        match self {
            Output::Flex(values) => values,
            #[cfg(feature = "libtorch")]
            Output::Torch(memory) => memory.elements_mut(),
        }
    }

    pub(super) fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<D> {
        match self {
            Output::Flex(values) => {
                Tensor::from_primitive::<Flex>(FlexTensor::from_data(TensorData::new(values, shape)))
            }
            #[cfg(feature = "libtorch")]
            Output::Torch(memory) => memory.tensor(shape),
        }
    }
}

/// Changes every element in place if no one else holds the tensor, else a copy. Hands the tensor
/// back if it is not plain.
pub(super) fn in_place<const D: usize>(
    given: Tensor<D>,
    change: impl FnOnce(&mut [f32]),
) -> Result<Tensor<D>, Tensor<D>> {
    let Some(held) = HostTensor::of(&given) else { return Err(given) };
    let shape = given.dims();
    // Now `held` may be the only handle.
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
    };
    let held = if held.is_contiguous() { held } else { held.contiguous() };
    let values = held.run();
    let mut output = held.blank(values.len());
    output.elements().copy_from_slice(values);
    change(output.elements());
    Ok(output.tensor(shape))
}
