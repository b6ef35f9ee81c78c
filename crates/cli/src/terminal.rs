//! Terminal output. Names, prompts and tokens may contain control characters, which are escaped so that the terminal
//! does not interpret them.

use std::fmt::Display;
use std::io::{self, ErrorKind, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use hooklens_io::shown_text::escaped_json;
pub(super) use hooklens_io::shown_text::shown;

/// Whether the reader of standard output has closed it.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Standard output with control characters escaped, as `‹U+001B›`. If the reader closes it early, as `head` does, the
/// rest is not printed and no error is reported; the command still runs to completion.
pub(super) struct Stdout(StdoutLock<'static>);

/// Standard output.
pub(super) fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

/// Whether the reader of standard output has closed it.
pub(super) fn is_unread() -> bool {
    IS_UNREAD.load(Ordering::Relaxed)
}

impl Stdout {
    /// Prints bytes without escaping.
    pub(super) fn write_exactly(&mut self, bytes: &[u8]) -> io::Result<()> {
        if is_unread() {
            return Ok(());
        }
        unless_unread(self.0.write_all(bytes))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_exactly(shown(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_unread(self.0.flush())
    }
}

fn unless_unread(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            IS_UNREAD.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints JSON with control characters escaped.
pub(super) fn print_json(json: &Value) -> io::Result<()> {
    stdout().write_exactly(escaped_json(&format!("{json:#}\n")).as_bytes())
}

/// Whether `--quiet` is given.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Turns off notes, progress bars and the names of written files.
pub(super) fn set_quiet(quiet: bool) {
    IS_QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether `--quiet` is given.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints a note to standard error, unless `--quiet` is given.
pub(super) fn note(text: impl Display) {
    if !is_quiet() {
        say(format_args!("note: {text}"));
    }
}

/// Prints a line to standard error.
pub(super) fn say(text: impl Display) {
    hooklens_io::stderr::line(shown(&text.to_string()));
}
