//! Retaining freed memory in the process (glibc).

/// Makes the C library keep freed memory for reuse instead of returning it to the operating system, which zeroes every
/// page before handing it out again. A run that records every point then takes 235 ms instead of 330 ms (at GPT-2
/// small's size, 128 tokens). The process stays as large as its largest run.
///
/// The setting affects the whole process, so a library must not choose it; the `hooklens` binary does. If the C library
/// is not glibc, this has no effect and returns `false`.
///
/// ```
/// let kept = hooklens::retain_freed_memory();
/// assert_eq!(kept, cfg!(all(target_os = "linux", target_env = "gnu")));
/// ```
pub fn retain_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `mallopt` accepts any numbers, returns 0 for those it rejects, and locks what it changes.
        #[allow(unsafe_code, reason = "measured: benches/RESULTS.md")]
        let set = |parameter, value| unsafe { libc::mallopt(parameter, value) == 1 };
        // Blocks that are mapped separately would be returned when they are freed.
        set(libc::M_MMAP_MAX, 0) && set(libc::M_TRIM_THRESHOLD, -1)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}
