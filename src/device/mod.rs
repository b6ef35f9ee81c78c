//! Devices by name.

mod freed;
mod memory;
mod placement;
#[cfg(feature = "remote")]
mod remote;

use burn::tensor::Device;
#[cfg(any(feature = "libtorch", feature = "cuda"))]
use burn::tensor::DeviceType;

use crate::error::{Error, Result};

pub use freed::keep_freed_memory;
pub(crate) use memory::{check_room, guarded, main_memory};
pub(crate) use placement::Placement;
#[cfg(all(feature = "remote", feature = "cli"))]
pub(crate) use remote::TOKEN_VARIABLE;

/// The environment variable that names the [`default_device`].
///
/// ```
/// assert_eq!(hooklens::DEVICE_VARIABLE, "HOOKLENS_DEVICE"); // `HOOKLENS_DEVICE=flex hooklens info gpt2`
/// ```
pub const DEVICE_VARIABLE: &str = "HOOKLENS_DEVICE";

const KNOWN: &str = "devices are flex, libtorch, libtorch:cuda:N, cuda:N, remote:ws://HOST:PORT";

/// The device a name stands for: `flex` (this machine's CPU), and where built in `libtorch` (the CPU too),
/// `libtorch:cuda:N`, `cuda:N`, and `remote:ws://HOST:PORT` for what [`hooklens serve`](crate) offers there
/// (`#N` at the end for its N-th device, the first being 0).
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
            Some(Some(n)) => numbered(n, DeviceType::LibTorch, Device::libtorch_cuda).or_else(fails),
            _ => fails("after `libtorch:` comes `cuda` or `cuda:N`".to_string()),
        },
        #[cfg(feature = "cuda")]
        "cuda" => match index(rest) {
            Some(n) => numbered(n, DeviceType::Cuda, Device::cuda).or_else(fails),
            None => fails("after `cuda:` comes a number".to_string()),
        },
        #[cfg(feature = "remote")]
        "remote" => remote::connect(rest).or_else(fails),
        #[cfg(not(feature = "libtorch"))]
        "libtorch" => fails(not_built(kind)),
        #[cfg(not(feature = "cuda"))]
        "cuda" => fails(not_built(kind)),
        #[cfg(not(feature = "remote"))]
        "remote" => fails(not_built(kind)),
        _ => fails(KNOWN.to_string()),
    }
}

#[cfg(not(all(feature = "libtorch", feature = "cuda", feature = "remote")))]
fn not_built(feature: &str) -> String {
    format!("this build can't use it: build with `--features {feature}`")
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

/// A device number; none given means the first.
#[cfg(any(feature = "libtorch", feature = "cuda"))]
fn index(text: &str) -> Option<usize> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// The `n`-th device of a kind, or how many there are.
#[cfg(any(feature = "libtorch", feature = "cuda"))]
fn numbered(n: usize, kind: DeviceType, device: impl Fn(usize) -> Device) -> Result<Device, String> {
    match Device::enumerate(kind).into_vec().len() {
        0 => Err("no CUDA device was found; the driver may be missing".to_string()),
        count if n >= count => Err(format!("there are {count} CUDA devices, counted from 0")),
        _ => Ok(device(n)),
    }
}
