//! Signals that end the program: its unfinished files are removed first.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Set by the first `SIGTERM`, where a command looks at it.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// What a command looks at that can stop at a good place: from now on the first `SIGTERM` sets it and does no more.
pub(super) fn stop() -> Arc<AtomicBool> {
    STOP.get_or_init(Arc::default).clone()
}

/// Whether the first `SIGTERM` came to a command that looks at it.
pub(super) fn stopped() -> bool {
    STOP.get().is_some_and(|stop| stop.load(std::sync::atomic::Ordering::Relaxed))
}

/// Whether a `SIGTERM` ends the program with the code for "again": nothing of what it makes is written before its end.
static AGAIN: AtomicBool = AtomicBool::new(false);

/// From now on a `SIGTERM` ends the program with the code upon which schedulers start it again.
pub(super) fn begin_again() {
    AGAIN.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(unix)]
pub(super) fn watch() {
    use std::sync::atomic::Ordering;

    use hooklens_hooks::Unfinished;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    // `nohup`, and shells without job control, have some ignored: so it stays.
    let ignored = ignored();
    // A file that grows too large: with the signal caught, writing it fails with an error.
    let wanted = [SIGHUP, SIGINT, SIGTERM, SIGXFSZ];
    let watched = wanted.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    // Where signals can't be watched, the next run in the folder removes what is left.
    let Ok(mut signals) = Signals::new(watched) else { return };
    let watcher = std::thread::Builder::new().spawn(move || {
        for signal in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            let waited_for = STOP.get().filter(|_| signal == SIGTERM);
            if waited_for.is_some_and(|stop| !stop.swap(true, Ordering::Relaxed)) {
                continue;
            }
            #[cfg(feature = "object-stores")]
            hooklens_io::object_stores::abandon_uploads();
            Unfinished::abandon_all(|| {
                if signal == SIGTERM && AGAIN.load(Ordering::Relaxed) {
                    super::terminal::note("told to end, with nothing written; the same command begins again");
                    signal_hook::low_level::exit(75);
                }
                // The first process of a container has no default to be ended by.
                if std::process::id() == 1 {
                    signal_hook::low_level::exit(128 + signal);
                }
                emulate_default_handler(signal).ok();
            });
        }
    });
    // A system that starts no more threads: as where signals can't be watched.
    drop(watcher);
}

/// An allocation that fails prints its size and aborts: the program ends with the exit code of an error, without a core
/// dump.
#[cfg(unix)]
pub(super) fn exit_on_abort() {
    let always = Arc::new(AtomicBool::new(true));
    // Where the signal can't be caught, the system ends the program.
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGABRT, 1, always).ok();
}

/// The signals that are ignored, a bit each.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(not(unix))]
pub(super) fn watch() {}

#[cfg(not(unix))]
pub(super) fn exit_on_abort() {}
