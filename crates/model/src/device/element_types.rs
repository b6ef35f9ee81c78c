//! Element types supported by a device.

use burn::tensor::Device;
use hooklens_hooks::DType;

use crate::error::{Error, Result};

const ALL: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The element types that a device can store, convert, and compute in. Opens the device.
///
/// ```
/// use hooklens::DType;
/// let device = burn::tensor::Device::flex();
/// assert_eq!(hooklens_model::device::element_types(&device), [DType::F32, DType::F16, DType::BF16, DType::F64]);
/// ```
pub fn element_types(device: &Device) -> Vec<DType> {
    ALL.into_iter().filter(|dtype| computes_in(device, *dtype)).collect()
}

fn computes_in(device: &Device, dtype: DType) -> bool {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if dtype == DType::F64 && !super::cubecl::has_f64(device) {
        return false;
    }
    hooklens_hooks::device_supports(device, dtype)
}

/// Whether a device computes in a Burn element type.
pub fn has(device: &Device, dtype: burn::tensor::DType) -> bool {
    ALL.into_iter().find(|known| known.burn() == dtype).is_none_or(|dtype| computes_in(device, dtype))
}

/// A note for the user if a device computes in `dtype` with reduced precision.
pub fn rounding(device: &Device, dtype: DType) -> Option<String> {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if dtype == DType::F32 && super::cubecl::rounds_products(device) {
        let exact = "with an error of about 1e-3 of the largest value; `libtorch:cuda:N` does not";
        return Some(format!("{device:?} rounds the inputs of matrix products to TF32, {exact}"));
    }
    let _ = (device, dtype);
    None
}

/// Returns an error if a device does not compute in an element type.
pub fn check_element_type(device: &Device, dtype: burn::tensor::DType) -> Result<()> {
    if has(device, dtype) {
        return Ok(());
    }
    let names: Vec<String> = element_types(device).iter().map(DType::to_string).collect();
    let dtype = format!("{dtype:?}").to_lowercase();
    Err(Error::ElementType { device: format!("{device:?}"), dtype, has: names.join(", ") })
}
