//! Recognizes out-of-memory errors of device allocators.

use std::error::Error;

use burn::tensor::ExecutionError;

/// Size of the failed allocation, if a device ran out of memory. One of the error's causes must be a device error with
/// an out-of-memory message; other errors that mention memory do not count.
pub(crate) fn device_out_of_what_memory(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    causes.find_map(|cause| out_of_what_memory(&cause.downcast_ref::<ExecutionError>()?.to_string()))
}

/// Size of the failed allocation, if a library panicked because a device ran out of memory. Since a hook may panic with
/// any message, a panic in a hook counts only if its message contains a device error.
pub(crate) fn panicked_out_of_what_memory(message: &str, in_hook: bool) -> Option<String> {
    // Errors of LibTorch and Burn, as formatted by a failed `unwrap` or `expect`.
    const DEVICE: [&str; 4] =
        [": Torch(\"", ": WithContext { reason: ", ": Generic { reason: ", "Failed to read a tensor off"];
    let of_device = !in_hook || DEVICE.iter().any(|said| message.contains(said));
    if of_device { out_of_what_memory(message) } else { None }
}

/// Size of the failed allocation, if this is an allocator's out-of-memory message.
fn out_of_what_memory(message: &str) -> Option<String> {
    // CUDA: "out of memory. Tried to allocate 2.00 GiB."; CPU: "can't allocate memory: you tried to allocate 64 bytes."
    let lower = message.to_lowercase();
    // CubeCL: "out of device memory allocating 4096 bytes", "can't allocate buffer of size: 4096", "An out-of-memory
    // error happened during launch".
    const SAID: [&str; 5] =
        ["out of memory", "out-of-memory", "out of device memory", "can't allocate memory", "can't allocate buffer"];
    if !SAID.iter().any(|said| lower.contains(said)) {
        return None;
    }
    if let Some((_, size)) = ["allocating ", "buffer of size: "].iter().find_map(|before| lower.split_once(before)) {
        let digits: String = size.chars().take_while(char::is_ascii_digit).collect();
        if !digits.is_empty() {
            return Some(format!("{digits} bytes"));
        }
    }
    let asked = lower.split_once("tried to allocate ").map(|(_, asked)| asked);
    let words: Vec<&str> = asked.unwrap_or_default().split_whitespace().take(2).collect();
    let unit = words.get(1).map(|unit| unit.trim_end_matches(|end: char| !end.is_alphanumeric()));
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
    fn a_hook_may_say_what_it_likes() {
        let own = std::io::Error::other("out of memory. Tried to allocate 2.00 GiB.");
        assert_eq!(device_out_of_what_memory(&own), None);
        let device = ExecutionError::WithContext { reason: "out of device memory allocating 64 bytes".into() };
        let device = crate::error::Error::DeviceFailed { device: "a card".into(), source: device.into() };
        assert_eq!(device_out_of_what_memory(&device).as_deref(), Some("64 bytes"));
        let torch =
            "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA out of memory. Tried to allocate 2.00 GiB.\")";
        for (message, in_hook, asked) in [
            ("out of memory", false, Some("an unknown amount")),
            ("out of memory", true, None),
            ("called `Result::unwrap()` on an `Err` value: \"out of memory\"", true, None),
            (torch, false, Some("2.00 GiB")),
            (torch, true, Some("2.00 GiB")),
        ] {
            assert_eq!(panicked_out_of_what_memory(message, in_hook).as_deref(), asked, "{message}, {in_hook}");
        }
    }

    #[test]
    fn what_was_asked_for_is_read_from_what_allocators_say() {
        let cuda = "Torch(\"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB\")";
        assert_eq!(out_of_what_memory(cuda).as_deref(), Some("2.00 GiB"));
        let cpu = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12";
        assert_eq!(out_of_what_memory(cpu).as_deref(), Some("4096 bytes"));
        assert_eq!(out_of_what_memory("out of device memory allocating 4096 bytes").as_deref(), Some("4096 bytes"));
        assert_eq!(out_of_what_memory("can't allocate buffer of size: 4096").as_deref(), Some("4096 bytes"));
        let launch = "An out-of-memory error happened during launch";
        assert_eq!(out_of_what_memory(launch).as_deref(), Some("an unknown amount"));
        assert_eq!(out_of_what_memory("Out of memory").as_deref(), Some("an unknown amount"));
        assert_eq!(out_of_what_memory("index out of bounds"), None);
    }
}
