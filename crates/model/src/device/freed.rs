//! Keeping freed memory with the process (glibc).

/// Makes the C library keep memory that runs free for the next ones, instead of returning it to the system, which
/// clears every page of it before it gives it out again: a run that records every point then takes 235 ms where it
/// took 330 (GPT-2 small's shape, 128 tokens). The process stays as large as its largest run made it.
///
/// The setting is the whole process's, so the program chooses it; `hooklens` does. `false`, and nothing done,
/// where the C library is not glibc.
///
/// ```
/// let kept = hooklens::keep_freed_memory();
/// assert_eq!(kept, cfg!(all(target_os = "linux", target_env = "gnu")));
/// ```
pub fn keep_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // Blocks from this size on are the system's own and go back to it: the largest size that glibc takes here.
        const OWN: libc::c_int = 32 << 20;
        // SAFETY: the function takes any numbers, returns 0 for those it does not like, and locks what it changes.
        #[allow(unsafe_code, reason = "measured: benches/RESULTS.md")]
        let set = |parameter, value| unsafe { libc::mallopt(parameter, value) == 1 };
        set(libc::M_MMAP_THRESHOLD, OWN) && set(libc::M_TRIM_THRESHOLD, -1)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}
