//! Arrays that share memory with activations.

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_flex::{Flex, FlexTensor};
use hooklens::Activation;
use hooklens_hooks::Detach;
use numpy::{Element, PyReadonlyArrayDyn};
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::dlpack;
use crate::error::raise;

/// An activation in main memory, or a copy of one from another device.
#[derive(Clone)]
pub(crate) struct Memory {
    tensor: FlexTensor,
    address: usize,
    writable: bool,
}

impl Memory {
    /// The activation's memory, read-only. Makes a copy only if the activation is on another device.
    pub(crate) fn shared(activation: &Activation) -> hooklens::Result<Self> {
        let tensor = in_main_memory(activation)?;
        let address = start_of(&tensor);
        Ok(Self { tensor, address, writable: false })
    }

    /// Writable memory with the activation's values: the activation's own if nothing else uses it, or else a copy.
    pub(crate) fn writable(activation: Activation) -> hooklens::Result<Self> {
        let mut tensor = in_main_memory(&activation)?;
        drop(activation);
        // One stored input may be broadcast to several heads, and a change of one head must not change the others.
        if !tensor.is_contiguous() {
            tensor = tensor.to_contiguous();
        }
        // Copies the memory if it is shared.
        match tensor.dtype() {
            DType::F32 => _ = tensor.storage_mut::<f32>(),
            DType::F64 => _ = tensor.storage_mut::<f64>(),
            DType::F16 => _ = tensor.storage_mut::<half::f16>(),
            DType::BF16 => _ = tensor.storage_mut::<half::bf16>(),
            DType::I64 => _ = tensor.storage_mut::<i64>(),
            _ => {}
        }
        let address = start_of(&tensor);
        Ok(Self { tensor, address, writable: true })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.tensor.layout().shape()
    }

    /// Strides in elements.
    pub(crate) fn strides(&self) -> &[isize] {
        self.tensor.layout().strides()
    }

    /// Address of the first element.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether two arrays have the same shape, type and bits.
    pub(crate) fn same_values(&self, other: &Self) -> bool {
        self.tensor.clone().into_data() == other.tensor.clone().into_data()
    }

    /// The memory as an activation, without a copy.
    pub(crate) fn activation(&self) -> Activation {
        let tensor = self.tensor.clone();
        let integer = is_integer(tensor.dtype());
        macro_rules! of_rank {
            ($($rank:literal)*) => { match (self.shape().len(), integer) {
                $(($rank, false) => Tensor::<$rank>::from_primitive::<Flex>(tensor).into(),
                ($rank, true) => Tensor::<$rank, Int>::from_primitive::<Flex>(tensor).into(),)*
                _ => unreachable!("activations have 1 to 6 axes"),
            } };
        }
        of_rank!(1 2 3 4 5 6)
    }
}

/// The activation's tensor in main memory, without autodiff.
fn in_main_memory(activation: &Activation) -> hooklens::Result<FlexTensor> {
    let activation = activation.clone().detached();
    macro_rules! of_rank {
        ($($rank:literal)*) => { match (activation.shape().len(), is_integer(activation.dtype())) {
            $(($rank, false) => activation.to_tensor::<$rank>()?.try_into_primitive::<Flex>().ok(),
            ($rank, true) => activation.to_int_tensor::<$rank>()?.try_into_primitive::<Flex>().ok(),)*
            _ => None,
        } };
    }
    match of_rank!(1 2 3 4 5 6) {
        Some(tensor) => Ok(tensor),
        None => Ok(FlexTensor::from_data(activation.to_data()?)),
    }
}

fn is_integer(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

fn start_of(tensor: &FlexTensor) -> usize {
    tensor.bytes().as_ptr() as usize + tensor.layout().start_offset() * tensor.dtype().size()
}

/// An array in main memory. NumPy, torch and others read it without a copy, through `__array_interface__` or DLPack.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Array {
    memory: Memory,
}

impl Array {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory }
    }

    /// The array of an activation, read-only and without a copy.
    pub(crate) fn shared(activation: &Activation) -> hooklens::Result<Self> {
        Ok(Self::new(Memory::shared(activation)?))
    }

    pub(crate) fn activation(&self) -> Activation {
        self.memory.activation()
    }

    /// The array as a float tensor of rank `D`.
    pub(crate) fn tensor<const D: usize>(&self) -> hooklens::Result<Tensor<D>> {
        Ok(self.activation().to_tensor()?)
    }
}

#[pymethods]
impl Array {
    /// A copy of a NumPy array of floats or integers. With `bf16=True`, the elements are the bits of bfloat16 numbers.
    #[staticmethod]
    #[pyo3(signature = (array, *, bf16=false))]
    fn copy_of(array: &Bound<'_, PyAny>, bf16: bool) -> PyResult<Self> {
        let data = if bf16 {
            let (values, shape) = copied::<u16>(array)?;
            TensorData::new(values.into_iter().map(half::bf16::from_bits).collect(), shape)
        } else {
            match array.getattr("dtype")?.getattr("name")?.extract::<String>()?.as_str() {
                "float32" => data::<f32>(array)?,
                "float64" => data::<f64>(array)?,
                "float16" => data::<half::f16>(array)?,
                "int64" => data::<i64>(array)?,
                "int32" => data::<i32>(array)?,
                other => {
                    let message =
                        format!("arrays of {other} are not supported; use float32, float64, float16 or int64");
                    return Err(PyTypeError::new_err(message));
                }
            }
        };
        let rank = data.shape().len();
        if !(1..=6).contains(&rank) {
            return Err(PyValueError::new_err(format!("an array must have 1 to 6 axes, not {rank}")));
        }
        let tensor = FlexTensor::from_data(data);
        let address = start_of(&tensor);
        Ok(Self::new(Memory { tensor, address, writable: false }))
    }

    /// Length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.memory.shape())
    }

    /// Element type: `float32`, `bfloat16`, `int64`, ...
    #[getter]
    fn dtype(&self) -> String {
        match self.memory.dtype() {
            DType::F32 => "float32".into(),
            DType::F64 => "float64".into(),
            DType::F16 => "float16".into(),
            DType::BF16 => "bfloat16".into(),
            DType::I64 => "int64".into(),
            DType::I32 => "int32".into(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.shape().iter().product::<usize>() * self.memory.dtype().size()
    }

    /// Address of the first element.
    #[getter]
    fn address(&self) -> usize {
        self.memory.address()
    }

    /// The array converted to `float32`.
    fn float32(&self, py: Python<'_>) -> PyResult<Self> {
        let widened = self.activation().cast(hooklens::DType::F32);
        Self::shared(&widened).map_err(|error| raise(py, error))
    }

    /// NumPy's array interface, version 3. `bfloat16` has none, because NumPy has no such type.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.memory.dtype() {
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::F16 => "<f2",
            DType::I64 => "<i8",
            DType::I32 => "<i4",
            other => return Err(PyAttributeError::new_err(format!("NumPy has no type for {other:?}"))),
        };
        let size = self.memory.dtype().size() as isize;
        let strides = self.memory.strides().iter().map(|stride| stride * size);
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", kind)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("strides", PyTuple::new(py, strides.collect::<Vec<_>>())?)?;
        interface.set_item("data", (self.memory.address(), !self.memory.is_writable()))?;
        Ok(interface)
    }

    /// A DLPack capsule, without a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None) -> "Any")]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = (stream, dl_device);
        if copy == Some(true) {
            return Err(PyValueError::new_err("DLPack copies are not supported; copy the consumer's array instead"));
        }
        dlpack::capsule(py, &self.memory, max_version.is_some_and(|(major, _)| major >= 1))
    }

    /// The DLPack device: `kDLCPU`, number 0.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    fn __repr__(&self) -> String {
        format!("Array({:?}, {})", self.memory.shape(), self.dtype())
    }
}

fn copied<E: Element + Copy>(array: &Bound<'_, PyAny>) -> PyResult<(Vec<E>, Vec<usize>)> {
    let array: PyReadonlyArrayDyn<'_, E> = array.extract()?;
    let view = array.as_array();
    Ok((view.iter().copied().collect(), view.shape().to_vec()))
}

fn data<E: Element + Copy + burn::tensor::Element>(array: &Bound<'_, PyAny>) -> PyResult<TensorData> {
    let (values, shape) = copied::<E>(array)?;
    Ok(TensorData::new(values, shape))
}
