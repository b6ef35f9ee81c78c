//! Replaces invisible characters, and characters that reorder text, with their names.

use std::borrow::Cow;

/// Whether a character is a control character, or invisibly reorders, splits or joins the text around it. Line breaks
/// and tabs are control characters. Joiners and variation selectors, which scripts and emoji need, are not hidden.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}')
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(letter, '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// Name of a hidden character, such as `‹U+202E›`.
pub fn named(letter: char) -> String {
    format!("‹U+{:04X}›", letter as u32)
}

/// Replaces hidden characters in a text, except line breaks and tabs, with their names.
pub fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, named)
}

/// Escapes hidden characters in JSON.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    replaced(json, |letter| {
        let mut units = [0; 2];
        letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn replaced(text: &str, by: impl Fn(char) -> String) -> Cow<'_, str> {
    let is_replaced = |letter: char| is_hidden(letter) && letter != '\n' && letter != '\t';
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut replaced = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_replaced(letter) { replaced.push_str(&by(letter)) } else { replaced.push(letter) }
    }
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_named() {
        assert_eq!(shown("a\u{1b}[31m\n\tb\u{9b}\r"), "a‹U+001B›[31m\n\tb‹U+009B›‹U+000D›");
        assert_eq!(shown("\u{202e}txt\u{feff}"), "‹U+202E›txt‹U+FEFF›");
        for letter in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{2066}\u{2069}\u{2060}\u{200b}\u{e0041}".chars()
        {
            assert_eq!(shown(&letter.to_string()), named(letter));
        }
        assert!(matches!(shown("né 日本 👍 می‌خواهم 👩‍👧 ❤️"), Cow::Borrowed(_)));
    }

    #[test]
    fn escaped_json_holds_the_same() {
        let text = "\u{202e}\u{feff}\u{e0041}\u{7f}\n<";
        let json = serde_json::to_string(text).unwrap();
        let escaped = escaped_json(&json);
        assert!(!escaped.contains(is_hidden), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }
}
