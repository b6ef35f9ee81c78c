//! What the program prints. Names in files, prompts and tokens may hold control characters, which a terminal would obey:
//! they are shown instead.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, StdoutLock, Write};

use serde_json::Value;

/// Standard output, on which control characters are shown: `‹U+001B›`.
pub(super) struct Stdout(StdoutLock<'static>);

/// Standard output.
pub(super) fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(shown(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints JSON, in which control characters are escaped.
pub(super) fn print_json(json: &Value) -> io::Result<()> {
    let text = format!("{json:#}\n");
    let escaped = replaced(&text, |letter| {
        let mut units = [0; 2];
        letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    });
    io::stdout().lock().write_all(escaped.as_bytes())
}

/// Prints a note to standard error.
pub(super) fn note(text: impl Display) {
    say(format_args!("note: {text}"));
}

/// Prints a line to standard error.
pub(super) fn say(text: impl Display) {
    crate::stderr::line(shown(&text.to_string()));
}

/// A text whose control characters are shown.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, |letter| format!("‹U+{:04X}›", letter as u32))
}

fn replaced(text: &str, by: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut replaced = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_obeyed(letter) { replaced.push_str(&by(letter)) } else { replaced.push(letter) }
    }
    Cow::Owned(replaced)
}

/// Whether a terminal obeys a character: controls but for line ends and tabs, and what turns the direction of writing.
fn is_obeyed(letter: char) -> bool {
    (letter.is_control() && letter != '\n' && letter != '\t')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown() {
        assert_eq!(shown("a\u{1b}[31m\n\tb\u{9b}\r"), "a‹U+001B›[31m\n\tb‹U+009B›‹U+000D›");
        assert_eq!(shown("\u{202e}txt"), "‹U+202E›txt");
        assert!(matches!(shown("né 日本 👍"), Cow::Borrowed(_)));
    }
}
