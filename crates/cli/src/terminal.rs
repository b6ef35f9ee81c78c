//! What the program prints. Names in files, prompts and tokens may hold control characters, which a terminal would obey:
//! they are shown instead.

use std::fmt::Display;
use std::io::{self, ErrorKind, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use hooklens_io::shown_text::escaped_json;
pub(super) use hooklens_io::shown_text::shown;

/// Whether the reader of standard output went away.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Standard output, on which control characters are shown: `‹U+001B›`. Its reader may go away, as `head` does: the rest is
/// not printed, which is no error, and the work goes on to its end.
pub(super) struct Stdout(StdoutLock<'static>);

/// Standard output.
pub(super) fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

/// Whether nobody reads standard output any more.
pub(super) fn is_unread() -> bool {
    IS_UNREAD.load(Ordering::Relaxed)
}

impl Stdout {
    /// Prints bytes as they are.
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

/// Prints JSON, in which control characters are escaped.
pub(super) fn print_json(json: &Value) -> io::Result<()> {
    stdout().write_exactly(escaped_json(&format!("{json:#}\n")).as_bytes())
}

/// Prints a note to standard error.
pub(super) fn note(text: impl Display) {
    say(format_args!("note: {text}"));
}

/// Prints a line to standard error.
pub(super) fn say(text: impl Display) {
    hooklens_io::stderr::line(shown(&text.to_string()));
}
