//! Devices by name.

use burn::tensor::Device;

use crate::error::{Error, Result};

/// The device a name stands for: `flex` (the CPU), and where built in `libtorch`,
/// `libtorch:cuda:N`, `cuda:N`.
///
/// # Errors
/// [`Error::Device`] for an unknown name, or one this build has no backend for.
///
/// ```
/// assert!(hooklens::parse_device("flex").is_ok());
/// assert!(hooklens::parse_device("abacus").is_err());
/// ```
pub fn parse_device(name: &str) -> Result<Device> {
    let fails = |reason: &str| Err(Error::Device { name: name.to_string(), reason: reason.to_string() });
    let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
    match kind {
        "flex" | "cpu" if rest.is_empty() => Ok(Device::flex()),
        #[cfg(feature = "libtorch")]
        "libtorch" if rest.is_empty() => Ok(Device::libtorch()),
        #[cfg(feature = "libtorch")]
        "libtorch" => match rest.strip_prefix("cuda").map(|n| n.trim_start_matches(':')).map(index) {
            Some(Some(n)) => Ok(Device::libtorch_cuda(n)),
            _ => fails("after `libtorch:` comes `cuda` or `cuda:N`"),
        },
        #[cfg(feature = "cuda")]
        "cuda" => match index(rest) {
            Some(n) => Ok(Device::cuda(n)),
            None => fails("after `cuda:` comes a number"),
        },
        #[cfg(not(feature = "libtorch"))]
        "libtorch" => fails("this build has no LibTorch (feature `libtorch`)"),
        #[cfg(not(feature = "cuda"))]
        "cuda" => fails("this build has no CUDA (feature `cuda`)"),
        _ => fails("devices are flex, libtorch, libtorch:cuda:N, cuda:N"),
    }
}

/// A device number; none given means the first.
#[cfg(any(feature = "libtorch", feature = "cuda"))]
fn index(text: &str) -> Option<usize> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}
