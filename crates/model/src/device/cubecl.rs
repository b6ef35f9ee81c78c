//! CubeCL devices: CUDA, and Vulkan, Metal, and DirectX 12 through wgpu.

use burn::backend::DispatchDevice;
use burn::cubecl;
use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::DeviceType;

/// The underlying CubeCL device, if `device` is one.
fn cube(device: &Device) -> Option<cubecl::Device> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// Whether this is a CubeCL device, which queues work and executes it later on its own thread.
pub(super) fn is_one(device: &Device) -> bool {
    cube(device).is_some()
}

/// Whether `f64` is computed correctly. wgpu reports the type as supported, but SPIR-V's `exp` has no `f64` variant and
/// returns NaN.
pub(super) fn has_f64(device: &Device) -> bool {
    !matches!(cube(device), Some(cubecl::Device::Wgpu(_)))
}

/// Whether `f32` products are rounded to TF32. cubek's matrix products do this wherever tensor cores are used, and Burn
/// 0.22.1 can't turn it off.
pub(super) fn rounds_products(device: &Device) -> bool {
    matches!(cube(device), Some(cubecl::Device::Cuda(_)))
}

/// Memory size in bytes, if the driver reports it. Opens the device.
pub(super) fn memory(device: &Device) -> Option<u64> {
    cube(device)?.client().properties().memory.max_memory()
}

/// A backend and its devices.
pub(super) struct Kind {
    /// Prefix of the backend's device names.
    pub(super) name: &'static str,
    /// Display name.
    pub(super) spelled: &'static str,
    of: DeviceType,
}

/// The backends included in this build.
pub(super) fn kinds() -> Vec<Kind> {
    vec![
        #[cfg(feature = "cuda")]
        Kind { name: "cuda", spelled: "CUDA", of: DeviceType::Cuda },
        #[cfg(feature = "vulkan")]
        Kind { name: "vulkan", spelled: "Vulkan", of: DeviceType::Vulkan },
        #[cfg(feature = "metal")]
        Kind { name: "metal", spelled: "Metal", of: DeviceType::Metal },
        #[cfg(feature = "wgpu")]
        Kind { name: "wgpu", spelled: "wgpu", of: DeviceType::Wgpu },
    ]
}

impl Kind {
    /// The available devices, in index order.
    pub(super) fn devices(&self) -> Vec<Device> {
        let there = Device::enumerate(self.of.clone()).into_vec();
        match self.of {
            #[cfg(feature = "cuda")]
            DeviceType::Cuda => there,
            #[cfg(feature = "wgpu")]
            _ => cards_first(&self.of, there),
            #[cfg(not(feature = "wgpu"))]
            _ => there,
        }
    }
}

/// wgpu devices, with discrete GPUs first and software renderers last.
#[cfg(feature = "wgpu")]
fn cards_first(kind: &DeviceType, mut left: Vec<Device>) -> Vec<Device> {
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
