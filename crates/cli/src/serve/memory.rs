//! Memory limits of session processes.

use crate::memory::may_take;

/// Default memory limit: 80% of the machine's memory, or of its container's limit.
pub(super) fn default_limit() -> Option<u64> {
    may_take().map(|bytes| bytes / 5 * 4)
}

/// Limits the memory of this process, so that allocations beyond it fail, and turns off core dumps, which would contain
/// its memory.
#[cfg(target_os = "linux")]
pub(super) fn limit(bytes: Option<u64>) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let set = |kind, most: u64| {
        // A limit that is already set can't be raised.
        let most = getrlimit(kind).maximum.map_or(most, |already| already.min(most));
        setrlimit(kind, Rlimit { current: Some(most), maximum: Some(most) })
    };
    set(Resource::Core, 0).map_err(|e| format!("cannot disable core dumps: {e}"))?;
    bytes.map_or(Ok(()), |most| set(Resource::Data, most)).map_err(|e| format!("cannot limit the memory: {e}"))
}

/// Does nothing: there is no such limit on this platform.
#[cfg(not(target_os = "linux"))]
pub(super) fn limit(_bytes: Option<u64>) -> Result<(), String> {
    Ok(())
}
