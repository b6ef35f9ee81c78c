//! Shortens values from files for messages.

use std::fmt::{Display, Error, Result, Write};

/// Maximum number of characters of a value in a message.
const LONGEST_VALUE: usize = 300;

/// Maximum number of characters of a message. The longest message of hooklens lists all supported families.
const LONGEST_MESSAGE: usize = 8000;

/// The text of a value from a file, cut to a length that fits into a message. Formatting stops there, so that a value
/// of any size takes little memory.
pub fn excerpt(value: impl Display) -> String {
    cut(value, LONGEST_VALUE)
}

/// The text of a message, which may quote a value from a file, cut to a length that fits on a screen.
pub fn message(whole: impl Display) -> String {
    cut(whole, LONGEST_MESSAGE)
}

/// The first `left` characters of a value's text, followed by an ellipsis if there are more.
fn cut(value: impl Display, left: usize) -> String {
    let mut text = Cut { text: String::new(), left };
    // The only error is that the text is too long.
    if write!(text, "{value}").is_err() {
        text.text.push('…');
    }
    text.text
}

/// A text of limited length. Writing more characters than `left` is an error.
struct Cut {
    text: String,
    left: usize,
}

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> Result {
        match text.char_indices().nth(self.left) {
            None => {
                self.left -= text.chars().count();
                self.text.push_str(text);
                Ok(())
            }
            Some((at, _)) => {
                self.left = 0;
                self.text.push_str(&text[..at]);
                Err(Error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut() {
        assert_eq!(excerpt("né".repeat(150)), "né".repeat(150));
        assert_eq!(excerpt("né".repeat(151)), "né".repeat(150) + "…");
        let list = serde_json::json!(vec![7; 10_000_000]);
        assert_eq!(excerpt(&list), excerpt(list.to_string()));
    }

    #[test]
    fn long_messages_are_cut() {
        let long = message(format_args!("`x` is {}, not a number", "9".repeat(1 << 20)));
        assert!(long.starts_with("`x` is 999") && long.ends_with("9…") && long.len() < 9000, "{long}");
    }
}
