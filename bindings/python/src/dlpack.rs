//! DLPack: the exchange format for arrays of NumPy, torch, JAX and others, <https://dmlc.github.io/dlpack>.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use burn::tensor::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::array::Memory;

/// `kDLCPU`: main memory.
pub(crate) const CPU: i32 = 1;
const READ_ONLY: u64 = 1;
const VERSION: Version = Version { major: 1, minor: 0 };

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, of versions before 1.0.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`, since 1.0.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// Keeps the memory alive until the consumer deletes the tensor.
struct Manager {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Memory,
}

/// A capsule with the array, without a copy. `versioned` says whether the consumer supports versioned capsules.
pub(crate) fn capsule<'py>(py: Python<'py>, memory: &Memory, versioned: bool) -> PyResult<Bound<'py, PyCapsule>> {
    let dtype = data_type(memory.dtype())?;
    let mut manager = Box::new(Manager {
        shape: memory.shape().iter().map(|len| *len as i64).collect(),
        strides: memory.strides().iter().map(|stride| *stride as i64).collect(),
        _memory: memory.clone(),
    });
    let tensor = DlTensor {
        data: memory.address() as *mut c_void,
        device: Device { kind: CPU, id: 0 },
        ndim: manager.shape.len() as i32,
        dtype,
        shape: manager.shape.as_mut_ptr(),
        strides: manager.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let manager = Box::into_raw(manager).cast::<c_void>();
    if versioned {
        let flags = if memory.is_writable() { 0 } else { READ_ONLY };
        let managed = ManagedVersioned { version: VERSION, manager, deleter: Some(delete_versioned), flags, tensor };
        let pointer = NonNull::from(Box::leak(Box::new(managed))).cast();
        // SAFETY: the pointer is a valid DLManagedTensorVersioned, which the destructor frees if no consumer took it.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, VERSIONED_NAME, Some(drop_versioned)) }
    } else {
        let managed = Managed { tensor, manager, deleter: Some(delete) };
        let pointer = NonNull::from(Box::leak(Box::new(managed))).cast();
        // SAFETY: the pointer is a valid DLManagedTensor, which the destructor frees if no consumer took it.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, NAME, Some(drop_plain)) }
    }
}

fn data_type(dtype: DType) -> PyResult<DataType> {
    let (code, bits) = match dtype {
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::F16 => (2, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::BF16 => (4, 16),
        other => return Err(PyTypeError::new_err(format!("{other:?} arrays cannot be exchanged with DLPack"))),
    };
    Ok(DataType { code, bits, lanes: 1 })
}

/// Called by the consumer when it no longer needs the tensor.
///
/// # Safety
/// `managed` must come from [`capsule`] and must not be used afterwards.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both pointers were leaked by `capsule`, and the consumer calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.manager.cast::<Manager>()));
    }
}

/// Called by the consumer when it no longer needs the tensor.
///
/// # Safety
/// `managed` must come from [`capsule`] and must not be used afterwards.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: both pointers were leaked by `capsule`, and the consumer calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.manager.cast::<Manager>()));
    }
}

/// Frees a tensor that no consumer took. (A consumer renames the capsule when it takes the tensor.)
///
/// # Safety
/// Called by Python with the capsule that is being destroyed.
unsafe extern "C" fn drop_plain(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: the capsule is valid while its destructor runs; the name is checked before the pointer is read.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// Frees a tensor that no consumer took. (A consumer renames the capsule when it takes the tensor.)
///
/// # Safety
/// Called by Python with the capsule that is being destroyed.
unsafe extern "C" fn drop_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: the capsule is valid while its destructor runs; the name is checked before the pointer is read.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(pyo3::ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}
