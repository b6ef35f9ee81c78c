//! Converts out-of-memory panics and errors into one kind of error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::Device;

use crate::error::{Error, Result, device_out_of_what_memory, panicked_out_of_what_memory};

/// Runs `work`, converting a device's out-of-memory panic or error to [`Error::OutOfMemory`]. All other panics and
/// errors are passed through, including those from hooks, whatever their message.
///
/// State that the work was changing is restored by guards during unwinding
/// ([`Transaction`](crate::kv_cache::Transaction)).
pub fn guarded<T>(devices: impl FnOnce() -> Vec<Device>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let out_of_memory = |asked| Error::OutOfMemory { devices: format!("{:?}", devices()), asked };
    hooklens_hooks::panicked_in_hook(); // clear what was recorded earlier
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Err(error)) if !matches!(error, Error::OutOfMemory { .. }) => {
            Err(device_out_of_what_memory(&error).map_or(error, out_of_memory))
        }
        Ok(done) => done,
        Err(panic) => {
            let in_hook = hooklens_hooks::panicked_in_hook();
            match message(&*panic).and_then(|message| panicked_out_of_what_memory(message, in_hook)) {
                Some(asked) => Err(out_of_memory(asked)),
                None => resume_unwind(panic),
            }
        }
    }
}

/// Returns an error if a run on this machine's CPU would need more memory than is available. Without this
/// check, a failed allocation would abort the process.
pub fn check_room(device: &Device, asked: usize) -> Result<()> {
    if !in_main_memory(device) || Vec::<u8>::new().try_reserve_exact(asked).is_ok() {
        return Ok(());
    }
    Err(Error::OutOfMemory { devices: format!("{device:?}"), asked: format!("{asked} bytes") })
}

/// Whether this is a CubeCL device, which queues work and executes it later on its own thread.
pub fn is_cubecl(device: &Device) -> bool {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if super::cubecl::is_one(device) {
        return true;
    }
    let _ = device;
    false
}

/// A device whose tensors are in this machine's main memory: the given one if it qualifies, or else `flex`.
pub fn main_memory(device: &Device) -> Device {
    if in_main_memory(device) { device.clone() } else { Device::flex() }
}

/// Whether a device's tensors are in this machine's main memory.
pub fn in_main_memory(device: &Device) -> bool {
    #[cfg(feature = "libtorch")]
    #[allow(deprecated, reason = "Burn is pinned to the last release series that supports LibTorch")]
    if *device == Device::libtorch() {
        return true;
    }
    *device == Device::flex()
}

/// Whether matrix products on this device widen 16-bit matrices as they read them. The kernels of `hooklens-kernels`
/// do, if no gradients are tracked for weights.
pub fn multiplies_narrow(device: &Device) -> bool {
    in_main_memory(device) && device.gradient_checkpointing_strategy().is_none()
}

fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

#[cfg(test)]
mod tests {
    use burn::tensor::ExecutionError;

    use super::*;

    #[test]
    fn other_panics_go_on() {
        let caught = catch_unwind(|| guarded(Vec::new, || -> Result<()> { panic!("a hook's own") }));
        assert!(caught.is_err());
        let full = guarded(Vec::new, || -> Result<()> { panic!("out of memory") });
        assert!(matches!(full, Err(Error::OutOfMemory { .. })));
        let late = guarded(Vec::new, || -> Result<()> {
            let source = ExecutionError::WithContext { reason: "out of device memory allocating 64 bytes".into() };
            Err(Error::DeviceFailed { device: "a card".into(), source: source.into() })
        });
        assert!(matches!(late, Err(Error::OutOfMemory { asked, .. }) if asked == "64 bytes"));
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let device = Device::flex();
        assert!(check_room(&device, 1 << 10).is_ok());
        assert!(matches!(check_room(&device, usize::MAX / 4), Err(Error::OutOfMemory { .. })));
    }
}
