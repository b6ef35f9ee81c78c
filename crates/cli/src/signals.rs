//! Handling of signals that end the program: unfinished files are removed first.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Set by the first `SIGTERM` or Ctrl+C, if the command supports stopping.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether Ctrl+C set [`STOP`].
#[cfg(unix)]
static BY_CTRL_C: AtomicBool = AtomicBool::new(false);

/// Returns the flag that tells a resumable command to stop. From now on, the first `SIGTERM` or Ctrl+C only sets this
/// flag.
pub(super) fn stop() -> Arc<AtomicBool> {
    STOP.get_or_init(Arc::default).clone()
}

/// Whether a signal has asked the command to stop.
pub(super) fn stopped() -> bool {
    STOP.get().is_some_and(|stop| stop.load(std::sync::atomic::Ordering::Relaxed))
}

/// Ends the process as Ctrl+C does, if Ctrl+C asked the command to stop, so that a shell's loop ends too.
pub(super) fn end_if_interrupted() {
    #[cfg(unix)]
    if BY_CTRL_C.load(std::sync::atomic::Ordering::Relaxed) {
        // If the process can't be ended this way, its exit code shows that it stopped.
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT).ok();
    }
}

/// Whether a `SIGTERM` should end the program with exit code 75, for commands that write nothing before they end.
static AGAIN: AtomicBool = AtomicBool::new(false);

/// Makes `SIGTERM` end the program with exit code 75, on which schedulers restart the job.
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

    // `nohup`, and shells without job control, start programs with some signals ignored. Keep ignoring these.
    let ignored = ignored();
    // With `SIGXFSZ` caught, writing a file that grows too large fails with an error instead of ending the program.
    let wanted = [SIGHUP, SIGINT, SIGTERM, SIGXFSZ];
    let watched = wanted.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    // If signals can't be watched, the next run in the folder removes leftover files.
    let Ok(mut signals) = Signals::new(watched) else { return };
    let watcher = std::thread::Builder::new().spawn(move || {
        for signal in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            let waited_for = STOP.get().filter(|_| matches!(signal, SIGTERM | SIGINT));
            if waited_for.is_some_and(|stop| !stop.swap(true, Ordering::Relaxed)) {
                if signal == SIGINT {
                    BY_CTRL_C.store(true, Ordering::Relaxed);
                    super::terminal::note("stopping after this step; press Ctrl+C again to stop at once");
                }
                continue;
            }
            #[cfg(feature = "object-stores")]
            hooklens_io::object_stores::abandon_uploads();
            Unfinished::abandon_all(|| {
                let again = AGAIN.load(Ordering::Relaxed);
                if again || signal == SIGINT {
                    let advice = if again { "; run the same command again to restart" } else { "" };
                    super::terminal::note(format_args!("stopped before writing results{advice}"));
                }
                if signal == SIGTERM && again {
                    signal_hook::low_level::exit(75);
                }
                // Process 1 of a container has no default signal handlers to end it.
                if std::process::id() == 1 {
                    signal_hook::low_level::exit(128 + signal);
                }
                emulate_default_handler(signal).ok();
            });
        }
    });
    // If no thread can be started, the program runs without watching signals.
    drop(watcher);
}

/// Turns an abort into exit code 1 without a core dump. A failed allocation prints its size and aborts.
#[cfg(unix)]
pub(super) fn exit_on_abort() {
    let always = Arc::new(AtomicBool::new(true));
    // If the handler can't be installed, the system ends the program.
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGABRT, 1, always).ok();
}

/// The ignored signals, as a bit mask.
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
