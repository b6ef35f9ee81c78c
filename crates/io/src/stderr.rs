//! Lines for people, on standard error. It may be full or closed, which is no reason to lose the work: nothing is made of
//! an error there, where `eprintln!` panics.

use std::fmt::Display;
use std::io::Write;

/// Writes a line.
pub fn line(text: impl Display) {
    writeln!(std::io::stderr(), "{text}").ok();
}
