//! Devices: names, element types, memory and placement.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod cubecl;
mod element_types;
mod freed;
mod list;
mod memory;
mod placement;
#[cfg(feature = "remote")]
mod remote;
mod self_test;

use burn::tensor::Device;
#[cfg(feature = "libtorch")]
use burn::tensor::DeviceType;

use crate::error::{Error, Result};

pub use element_types::element_types;
pub use element_types::{check_element_type, has, rounding};
pub use freed::retain_freed_memory;
pub use list::{DeviceInfo, devices};
pub use memory::{check_room, guarded, in_main_memory, is_cubecl, main_memory, multiplies_narrow};
pub use placement::Placement;
#[cfg(feature = "remote")]
pub use remote::TOKEN_VARIABLE;
pub use self_test::check_numbers;

/// Environment variable that names the [`default_device`].
///
/// ```
/// assert_eq!(hooklens_model::device::DEVICE_VARIABLE, "HOOKLENS_DEVICE"); // `HOOKLENS_DEVICE=flex hooklens info gpt2`
/// ```
pub const DEVICE_VARIABLE: &str = "HOOKLENS_DEVICE";

const KNOWN: &str =
    "known devices are flex, libtorch, libtorch:cuda:N, cuda:N, vulkan:N, metal:N, wgpu:N, remote:ws://HOST:PORT";

/// Device names that are enabled by a feature of the same name.
const FEATURES: [&str; 6] = ["libtorch", "cuda", "vulkan", "metal", "wgpu", "remote"];

/// Whether this build includes each of [`FEATURES`].
const BUILT: [bool; 6] = [
    cfg!(feature = "libtorch"),
    cfg!(feature = "cuda"),
    cfg!(feature = "vulkan"),
    cfg!(feature = "metal"),
    cfg!(feature = "wgpu"),
    cfg!(feature = "remote"),
];

/// Parses a device name. `flex` is this machine's CPU. Depending on the enabled features, there are also `libtorch`
/// (the same CPU), `libtorch:cuda:N`, `cuda:N`, `vulkan:N`, `metal:N` and `wgpu:N` (as listed by [`devices`]), and
/// `remote:ws://HOST:PORT` for a device served by [`hooklens serve`](crate), where `#N` at the end selects the server's
/// N-th device. Indices start at 0 and may be omitted.
///
/// Connects to a remote device immediately, using the token in `HOOKLENS_TOKEN` if it is set.
///
/// # Errors
/// [`Error::Device`] for an unknown name, a backend missing from this build (the message names the required feature),
/// or a device that does not exist.
///
/// ```
/// assert!(hooklens::parse_device("flex").is_ok());
/// assert!(hooklens::parse_device("abacus").is_err());
/// ```
#[cfg_attr(
    feature = "libtorch",
    allow(deprecated, reason = "Burn is pinned to the last release series that supports LibTorch")
)]
pub fn parse_device(name: impl AsRef<str>) -> Result<Device> {
    let name = name.as_ref();
    let fails = |reason: String| Err(Error::Device { name: name.to_string(), reason });
    let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
    match kind {
        "flex" | "cpu" if rest.is_empty() => Ok(Device::flex()),
        "flex" | "cpu" => fails("the CPU takes no device number".to_string()),
        #[cfg(feature = "libtorch")]
        "libtorch" if rest.is_empty() || rest == "cpu" => Ok(Device::libtorch()),
        #[cfg(feature = "libtorch")]
        "libtorch" => match rest.strip_prefix("cuda").map(|n| index(n.strip_prefix(':').unwrap_or(n))) {
            Some(Some(n)) => {
                let count = Device::enumerate(DeviceType::LibTorch).into_vec().len();
                numbered(n, "CUDA", (0..count).map(Device::libtorch_cuda)).or_else(fails)
            }
            _ => fails("expected `cuda` or `cuda:N` after `libtorch:`".to_string()),
        },
        #[cfg(feature = "remote")]
        "remote" => remote::connect(rest).or_else(fails),
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        _ if let Some(found) = cubecl::kinds().into_iter().find(|known| known.name == kind) => {
            of_kind(rest, &found).or_else(fails)
        }
        _ if FEATURES.contains(&kind) => {
            fails(format!("this build does not support it; rebuild with `--features {kind}`"))
        }
        _ => {
            let built = FEATURES.into_iter().zip(BUILT).filter(|(_, built)| *built).map(|(name, _)| name);
            let built: Vec<&str> = ["flex (the CPU)"].into_iter().chain(built).collect();
            fails(format!("{KNOWN}; this build supports {}", built.join(", ")))
        }
    }
}

/// The default device for loading models: the one named by the environment variable [`DEVICE_VARIABLE`], or else
/// `flex`, this machine's CPU.
///
/// # Errors
/// Same as [`parse_device`], for the variable's value.
///
/// ```
/// let device = hooklens::default_device()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn default_device() -> Result<Device> {
    match std::env::var(DEVICE_VARIABLE) {
        Ok(name) if !name.is_empty() => parse_device(name),
        _ => Ok(Device::flex()),
    }
}

/// Waits for the devices to finish. Returns an error if any of their queued work failed.
pub fn synchronize(devices: &[Device]) -> Result<()> {
    devices.iter().try_for_each(|device| {
        let failed = |source| Error::DeviceFailed { device: format!("{device:?}"), source };
        device.sync().map_err(|error| failed(error.into()))
    })
}

/// Parses a device index; an empty string means the first device.
#[cfg(any(feature = "libtorch", feature = "cuda", feature = "wgpu"))]
fn index(text: &str) -> Option<usize> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// The backend's device with index `rest`.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn of_kind(rest: &str, kind: &cubecl::Kind) -> Result<Device, String> {
    match index(rest) {
        Some(n) => numbered(n, kind.spelled, kind.devices().into_iter()),
        None => Err(format!("expected a number after `{}:`, not `{rest}`", kind.name)),
    }
}

/// The `n`-th device of a backend, or an error that states how many there are.
#[cfg(any(feature = "libtorch", feature = "cuda", feature = "wgpu"))]
fn numbered(n: usize, kind: &str, mut there: impl ExactSizeIterator<Item = Device>) -> Result<Device, String> {
    match there.len() {
        0 => Err(format!("no {kind} device was found; the driver may be missing")),
        1 if n > 0 => Err(format!("there is only 1 {kind} device, with index 0")),
        count => there.nth(n).ok_or_else(|| format!("there are {count} {kind} devices; indices start at 0")),
    }
}
