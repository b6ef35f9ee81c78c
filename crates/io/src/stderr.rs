//! Writes messages to standard error. Unlike `eprintln!`, which panics, this ignores errors: a full or closed standard
//! error is no reason to lose work.

use std::fmt::Display;
use std::io::Write;

/// Writes a line.
pub fn line(text: impl Display) {
    writeln!(std::io::stderr(), "{text}").ok();
}
