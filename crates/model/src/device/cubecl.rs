//! Devices of CubeCL: CUDA, and Vulkan, Metal and DirectX 12 by wgpu.

use burn::backend::DispatchDevice;
use burn::cubecl;
use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::DeviceType;

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

/// A kind of devices.
pub(super) struct Kind {
    /// As it begins a device's name.
    pub(super) name: &'static str,
    /// As it is spelled.
    pub(super) spelled: &'static str,
    of: DeviceType,
}

/// The kinds that this build has.
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
    /// The devices that are there, in the order of their numbers.
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

/// Devices of wgpu's: cards of their own first, software last.
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
