//! Listing the devices of this machine.

use burn::tensor::Device;
#[cfg(feature = "libtorch")]
use burn::tensor::DeviceType;
use hooklens_hooks::DType;

use super::element_types;

/// A device of this machine that this build can use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name for [`parse_device`](crate::device::parse_device), such as `vulkan:0`.
    pub name: String,
    /// The device's own description, or the reason why it can't be opened.
    pub description: String,
    /// Memory size in bytes, if the driver reports it.
    pub memory: Option<u64>,
    /// Element types that the device computes in; empty if it can't be opened.
    pub dtypes: Vec<DType>,
}

/// Lists the devices of this machine that this build can use. Opens each device to query its capabilities.
///
/// ```
/// let devices = hooklens::devices();
/// assert_eq!(devices[0].name, "flex");
/// assert!(devices[0].dtypes.contains(&hooklens::DType::BF16));
/// ```
#[cfg_attr(
    feature = "libtorch",
    allow(deprecated, reason = "Burn is pinned to the last release series that supports LibTorch")
)]
pub fn devices() -> Vec<DeviceInfo> {
    let cpu = format!("this machine's CPU, {} threads", rayon::current_num_threads());
    #[cfg_attr(
        not(any(feature = "libtorch", feature = "cuda", feature = "wgpu")),
        allow(unused_mut, reason = "builds with other backends add devices")
    )]
    let mut all = vec![named("flex".to_string(), &Device::flex(), Some(&cpu))];
    #[cfg(feature = "libtorch")]
    {
        all.push(named("libtorch".to_string(), &Device::libtorch(), Some("this machine's CPU, through LibTorch")));
        let cards = Device::enumerate(DeviceType::LibTorch).into_vec().len();
        all.extend((0..cards).map(|n| {
            named(format!("libtorch:cuda:{n}"), &Device::libtorch_cuda(n), Some("a CUDA device, through LibTorch"))
        }));
    }
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    for kind in super::cubecl::kinds() {
        let there = kind.devices();
        all.extend(there.iter().enumerate().map(|(n, device)| named(format!("{}:{n}", kind.name), device, None)));
    }
    all
}

/// Queries a device. Catches the panic of a driver that fails to open it.
fn named(name: String, device: &Device, description: Option<&str>) -> DeviceInfo {
    let opened = hooklens_io::caught::caught(|| (asked(device), element_types(device)));
    match opened {
        Ok(((own, memory), dtypes)) => {
            let description = description.map_or(own, str::to_string);
            DeviceInfo { name, description, memory, dtypes }
        }
        Err(_) => DeviceInfo { name, description: "can't be opened".to_string(), memory: None, dtypes: Vec::new() },
    }
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn asked(device: &Device) -> (String, Option<u64>) {
    let own = device.identity().map_or_else(|| format!("{device:?}"), |identity| identity.name);
    (own, super::cubecl::memory(device))
}

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
fn asked(device: &Device) -> (String, Option<u64>) {
    (format!("{device:?}"), None)
}
