//! Devices of CubeCL: CUDA, and Vulkan, Metal and DirectX 12 by wgpu.

use burn::backend::DispatchDevice;
use burn::cubecl;
use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::{DeviceKind, DeviceType};

/// CubeCL's own name of a device, if it is one of its devices.
fn cube(device: &Device) -> Option<cubecl::Device> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// Whether it is one of CubeCL's: work is queued there and done later, on a thread of its own.
pub(super) fn is_one(device: &Device) -> bool {
    cube(device).is_some()
}

/// Whether `f64` is computed right there. wgpu says it has the type, but SPIR-V's `exp` has no form for it, and gives
/// what is no number.
pub(super) fn has_f64(device: &Device) -> bool {
    !matches!(cube(device), Some(cubecl::Device::Wgpu(_)))
}

/// Whether products of `f32` are rounded to TF32: cubek's matrix products do so wherever tensor cores take part, and
/// Burn 0.22.1 has no switch for it.
pub(super) fn rounds_products(device: &Device) -> bool {
    matches!(cube(device), Some(cubecl::Device::Cuda(_)))
}

/// Bytes of memory, where the driver tells. Opens the device.
pub(super) fn memory(device: &Device) -> Option<u64> {
    cube(device)?.client().properties().memory.max_memory()
}

/// The devices of wgpu's with this type, in the order of their numbers: cards of their own first, software last.
#[cfg(feature = "wgpu")]
pub(super) fn enumerated(kind: DeviceType) -> Vec<Device> {
    let mut left = Device::enumerate(kind.clone()).into_vec();
    let make: fn(DeviceKind) -> Device = match kind {
        #[cfg(feature = "vulkan")]
        DeviceType::Vulkan => Device::vulkan,
        #[cfg(feature = "metal")]
        DeviceType::Metal => Device::metal,
        _ => Device::wgpu,
    };
    let kinds: [fn(usize) -> DeviceKind; 3] =
        [DeviceKind::DiscreteGpu, DeviceKind::IntegratedGpu, DeviceKind::VirtualGpu];
    let count = left.len();
    let order = kinds.into_iter().flat_map(|kind| (0..count).map(kind)).map(make);
    let mut all: Vec<Device> = order.filter(|device| left.contains(device)).collect();
    let software = make(DeviceKind::Cpu);
    left.retain(|device| !all.contains(device));
    let (last, others) = left.into_iter().partition::<Vec<_>, _>(|device| *device == software);
    all.extend(others.into_iter().chain(last));
    all
}
