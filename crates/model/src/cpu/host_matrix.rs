//! Weight matrices in host memory, in `f32`, `bf16` or `f16`.

use burn::tensor::{DType, Tensor};
use burn_flex::{Flex, FlexTensor};
use half::{bf16, f16};
use hooklens_kernels::element::Element;
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::view::View2;

use super::host_tensor::{Backend, Output};
#[cfg(feature = "libtorch")]
use super::torch::TorchMemory;

/// A matrix in host memory.
pub(super) struct HostMatrix {
    memory: Memory,
    dtype: DType,
    dims: [usize; 2],
    strides: [usize; 2],
}

enum Memory {
    Flex(FlexTensor),
    #[cfg(feature = "libtorch")]
    Torch(TorchMemory),
}

impl HostMatrix {
    /// The matrix, if it is on the CPU, has an element type that the kernels read, and has no negative strides.
    pub(super) fn of(matrix: &Tensor<2>) -> Option<Self> {
        let (dtype, dims) = (matrix.dtype(), matrix.dims());
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
            return None;
        }
        let (memory, strides) = match matrix.clone().try_into_primitive::<Flex>() {
            Ok(storage) => {
                let strides = storage.layout().strides().to_vec();
                (Memory::Flex(storage), strides)
            }
            #[cfg(feature = "libtorch")]
            Err(_) => {
                let memory = TorchMemory::of(matrix)?;
                let strides = memory.layout().1;
                (Memory::Torch(memory), strides)
            }
            #[cfg(not(feature = "libtorch"))]
            Err(_) => return None,
        };
        let [row, column] = [0, 1].map(|axis| usize::try_from(strides[axis]).ok());
        Some(Self { memory, dtype, dims, strides: [row?, column?] })
    }

    /// Allocates a new tensor of the same backend and element type. The caller must overwrite every element.
    pub(super) fn blank(&self, len: usize) -> Output {
        let backend = match self.memory {
            Memory::Flex(_) => Backend::Flex,
            #[cfg(feature = "libtorch")]
            Memory::Torch(_) => Backend::Torch,
        };
        Output::of(backend, self.dtype, len)
    }

    /// The matrix as a view for the kernels.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        match self.dtype {
            DType::BF16 => self.view(FlexTensor::storage::<bf16>).into(),
            DType::F16 => self.view(FlexTensor::storage::<f16>).into(),
            _ => self.view(FlexTensor::storage::<f32>).into(),
        }
    }

    fn view<E: Element>(&self, of_flex: impl Fn(&FlexTensor) -> &[E]) -> View2<'_, E> {
        let ([rows, columns], [row, column]) = (self.dims, self.strides);
        let elements = match &self.memory {
            Memory::Flex(storage) => &of_flex(storage)[storage.layout().start_offset()..],
            #[cfg(feature = "libtorch")]
            Memory::Torch(memory) => memory.elements_of::<E>(),
        };
        View2::new(elements, 0, (rows, columns), (row, column))
    }
}
