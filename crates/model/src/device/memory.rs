//! Out-of-memory panics, and errors, as one error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::Device;

use crate::error::{Error, Result, device_out_of_what_memory, panicked_out_of_what_memory};

/// Does the work; where a device's library panics or fails because its memory is full, that is
/// [`Error::OutOfMemory`]. Every other panic goes on, and so does every error: those of a hook too, whatever they say.
///
/// State that the work was changing is restored by the guards that unwinding drops ([`Transaction`](crate::kv_cache::Transaction)).
pub fn guarded<T>(devices: impl FnOnce() -> Vec<Device>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let out_of_memory = |asked| Error::OutOfMemory { devices: format!("{:?}", devices()), asked };
    hooklens_hooks::panicked_in_hook(); // what was before is no matter
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

/// An error if a run on this machine's CPU would need more memory than it has. An allocation that fails later
/// aborts the process, so this is checked first.
pub fn check_room(device: &Device, asked: usize) -> Result<()> {
    if !in_main_memory(device) || Vec::<u8>::new().try_reserve_exact(asked).is_ok() {
        return Ok(());
    }
    Err(Error::OutOfMemory { devices: format!("{device:?}"), asked: format!("{asked} bytes") })
}

/// Whether it is a device of CubeCL: what it is asked for is queued, and done later on a thread of its own.
pub fn is_cubecl(device: &Device) -> bool {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if super::cubecl::is_one(device) {
        return true;
    }
    let _ = device;
    false
}

/// The device whose tensors lie in this machine's main memory: the given one, if they do.
pub fn main_memory(device: &Device) -> Device {
    if in_main_memory(device) { device.clone() } else { Device::flex() }
}

/// Whether a device's tensors lie in this machine's main memory.
pub fn in_main_memory(device: &Device) -> bool {
    #[cfg(feature = "libtorch")]
    #[allow(deprecated, reason = "the last line of Burn that has LibTorch is pinned")]
    if *device == Device::libtorch() {
        return true;
    }
    *device == Device::flex()
}

/// Whether products on this device widen a matrix of 16 bits as they read it: the kernels do, where no gradients are
/// kept for weights.
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
