//! How much main memory a session's process may take.

use crate::memory::may_take;

/// What a session may take where nothing is said: 0.8 of this machine's memory, or of what its container may have.
pub(super) fn default_limit() -> Option<u64> {
    may_take().map(|bytes| bytes / 5 * 4)
}

/// Limits the memory of this process: an allocation beyond it fails. A crash leaves no file with its memory.
#[cfg(target_os = "linux")]
pub(super) fn limit(bytes: Option<u64>) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let set = |kind, most: u64| {
        // A limit that is there already can't be raised.
        let most = getrlimit(kind).maximum.map_or(most, |already| already.min(most));
        setrlimit(kind, Rlimit { current: Some(most), maximum: Some(most) })
    };
    set(Resource::Core, 0).map_err(|e| format!("can't turn core files off: {e}"))?;
    bytes.map_or(Ok(()), |most| set(Resource::Data, most)).map_err(|e| format!("can't limit the memory: {e}"))
}

/// Nothing: these systems bound no process by what it allocates.
#[cfg(not(target_os = "linux"))]
pub(super) fn limit(_bytes: Option<u64>) -> Result<(), String> {
    Ok(())
}
