//! Devices by name.

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
pub use freed::keep_freed_memory;
pub use list::{DeviceInfo, devices};
pub use memory::{check_room, guarded, in_main_memory, is_cubecl, main_memory, multiplies_narrow};
pub use placement::Placement;
#[cfg(feature = "remote")]
pub(crate) use remote::TOKEN_VARIABLE;
pub use self_test::check_numbers;

/// The environment variable that names the [`default_device`].
///
/// ```
/// assert_eq!(hooklens::DEVICE_VARIABLE, "HOOKLENS_DEVICE"); // `HOOKLENS_DEVICE=flex hooklens info gpt2`
/// ```
pub const DEVICE_VARIABLE: &str = "HOOKLENS_DEVICE";

const KNOWN: &str =
    "devices are flex, libtorch, libtorch:cuda:N, cuda:N, vulkan:N, metal:N, wgpu:N, remote:ws://HOST:PORT";

/// Devices that a feature of the same name brings.
const FEATURES: [&str; 6] = ["libtorch", "cuda", "vulkan", "metal", "wgpu", "remote"];

/// The device a name stands for: `flex` (this machine's CPU), and where built in `libtorch` (the CPU too),
/// `libtorch:cuda:N`, `cuda:N`, `vulkan:N`, `metal:N`, `wgpu:N` (what [`devices`] lists), and `remote:ws://HOST:PORT`
/// for what [`hooklens serve`](crate) offers there (`#N` at the end for its N-th device). Numbers begin at 0, which
/// may be left out.
///
/// A remote device is connected to at once, with the token in `HOOKLENS_TOKEN` if that is set.
///
/// # Errors
/// [`Error::Device`] for an unknown name, a backend this build lacks (it says which feature has it), or a device
/// that is not there.
///
/// ```
/// assert!(hooklens::parse_device("flex").is_ok());
/// assert!(hooklens::parse_device("abacus").is_err());
/// ```
#[cfg_attr(feature = "libtorch", allow(deprecated, reason = "the last line of Burn that has LibTorch is pinned"))]
pub fn parse_device(name: impl AsRef<str>) -> Result<Device> {
    let name = name.as_ref();
    let fails = |reason: String| Err(Error::Device { name: name.to_string(), reason });
    let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
    match kind {
        "flex" | "cpu" if rest.is_empty() => Ok(Device::flex()),
        "flex" | "cpu" => fails("the CPU has no number".to_string()),
        #[cfg(feature = "libtorch")]
        "libtorch" if rest.is_empty() || rest == "cpu" => Ok(Device::libtorch()),
        #[cfg(feature = "libtorch")]
        "libtorch" => match rest.strip_prefix("cuda").map(|n| index(n.strip_prefix(':').unwrap_or(n))) {
            Some(Some(n)) => {
                let count = Device::enumerate(DeviceType::LibTorch).into_vec().len();
                numbered(n, "CUDA", (0..count).map(Device::libtorch_cuda)).or_else(fails)
            }
            _ => fails("after `libtorch:` comes `cuda` or `cuda:N`".to_string()),
        },
        #[cfg(feature = "remote")]
        "remote" => remote::connect(rest).or_else(fails),
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        _ if let Some(found) = cubecl::kinds().into_iter().find(|known| known.name == kind) => {
            of_kind(rest, &found).or_else(fails)
        }
        _ if FEATURES.contains(&kind) => fails(format!("this build can't use it: build with `--features {kind}`")),
        _ => fails(KNOWN.to_string()),
    }
}

/// The device that models are loaded to by default: the one that the environment variable
/// [`DEVICE_VARIABLE`] names, else `flex`, this machine's CPU.
///
/// # Errors
/// As [`parse_device`], about the variable's value.
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

/// Waits for the devices: an error if any of what they were asked for failed.
pub fn synchronize(devices: &[Device]) -> Result<()> {
    devices.iter().try_for_each(|device| {
        let failed = |source| Error::DeviceFailed { device: format!("{device:?}"), source };
        device.sync().map_err(|error| failed(error.into()))
    })
}

/// A device number; none given means the first.
#[cfg(any(feature = "libtorch", feature = "cuda", feature = "wgpu"))]
fn index(text: &str) -> Option<usize> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// The device of a kind whose number is `rest`.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn of_kind(rest: &str, kind: &cubecl::Kind) -> Result<Device, String> {
    match index(rest) {
        Some(n) => numbered(n, kind.spelled, kind.devices().into_iter()),
        None => Err(format!("after `{}:` comes a number, not `{rest}`", kind.name)),
    }
}

/// The `n`-th of a kind's devices, or how many there are.
#[cfg(any(feature = "libtorch", feature = "cuda", feature = "wgpu"))]
fn numbered(n: usize, kind: &str, mut there: impl ExactSizeIterator<Item = Device>) -> Result<Device, String> {
    match there.len() {
        0 => Err(format!("no {kind} device was found; the driver may be missing")),
        1 if n > 0 => Err(format!("there is 1 {kind} device, counted from 0")),
        count => there.nth(n).ok_or_else(|| format!("there are {count} {kind} devices, counted from 0")),
    }
}
