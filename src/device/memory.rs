//! Out-of-memory panics as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::Device;

use crate::error::{Error, Result};

/// Does the work; where a device's library panics because its memory is full, that is an error. Every other panic
/// goes on.
///
/// State that the work was changing is restored by the guards that unwinding drops ([`Transaction`](crate::kv_cache::Transaction)).
pub(crate) fn guarded<T>(devices: impl FnOnce() -> Vec<Device>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| match message(&*panic).and_then(full) {
        Some(asked) => Err(Error::OutOfMemory { devices: format!("{:?}", devices()), asked }),
        None => resume_unwind(panic),
    })
}

/// An error if a run on this machine's CPU would need more memory than it has. An allocation that fails later
/// aborts the process, so this is checked first.
pub(crate) fn check_room(device: &Device, asked: usize) -> Result<()> {
    if !is_cpu(device) || Vec::<u8>::new().try_reserve_exact(asked).is_ok() {
        return Ok(());
    }
    Err(Error::OutOfMemory { devices: format!("{device:?}"), asked: format!("{asked} bytes") })
}

/// The device whose tensors lie in this machine's main memory: the given one, if they do.
pub(crate) fn main_memory(device: &Device) -> Device {
    if is_cpu(device) { device.clone() } else { Device::flex() }
}

fn is_cpu(device: &Device) -> bool {
    #[cfg(feature = "libtorch")]
    #[allow(deprecated, reason = "the last line of Burn that has LibTorch is pinned")]
    if *device == Device::libtorch() {
        return true;
    }
    *device == Device::flex()
}

fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

/// What was asked for, if this is the message of an allocator that could not give it.
fn full(message: &str) -> Option<String> {
    // CUDA's says "out of memory. Tried to allocate 2.00 GiB.", the CPU's "can't allocate memory: you tried to
    // allocate 64 bytes."
    let lower = message.to_lowercase();
    if !lower.contains("out of memory") && !lower.contains("can't allocate memory") {
        return None;
    }
    let asked = lower.split_once("tried to allocate ").map(|(_, asked)| asked);
    let words: Vec<&str> = asked.unwrap_or_default().split_whitespace().take(2).collect();
    let unit = words.get(1).map(|unit| unit.trim_end_matches(['.', ',']));
    Some(match (words.first(), unit) {
        (Some(number), Some("bytes")) => format!("{number} bytes"),
        (Some(number), Some(unit)) => format!("{number} {}", unit.replace('i', "").to_uppercase().replace('B', "iB")),
        _ => "an unknown amount".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_read_from_what_allocators_say() {
        let cuda = "Torch(\"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB\")";
        assert_eq!(full(cuda).as_deref(), Some("2.00 GiB"));
        let cpu = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12";
        assert_eq!(full(cpu).as_deref(), Some("4096 bytes"));
        assert_eq!(full("Out of memory").as_deref(), Some("an unknown amount"));
        assert_eq!(full("index out of bounds"), None);
    }

    #[test]
    fn other_panics_go_on() {
        let caught = catch_unwind(|| guarded(Vec::new, || -> Result<()> { panic!("a hook's own") }));
        assert!(caught.is_err());
        let full = guarded(Vec::new, || -> Result<()> { panic!("out of memory") });
        assert!(matches!(full, Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let device = Device::flex();
        assert!(check_room(&device, 1 << 10).is_ok());
        assert!(matches!(check_room(&device, usize::MAX / 4), Err(Error::OutOfMemory { .. })));
    }
}
