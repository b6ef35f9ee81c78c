//! Tokens made visible: spaces, line breaks and invisible characters are shown as symbols.

use hooklens_io::shown_text::{is_hidden, named};

/// A token with spaces as `·`, line breaks as `↵`, and other invisible characters by name: `\t`, `‹U+200B›`.
pub fn visible(token: &str) -> String {
    if token.is_empty() {
        return "‹empty›".into();
    }
    let mut shown = String::with_capacity(token.len());
    for letter in token.chars() {
        match letter {
            ' ' => shown.push('·'),
            '\n' => shown.push('↵'),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            hidden if is_unseen(hidden) => shown.push_str(&named(hidden)),
            letter => shown.push(letter),
        }
    }
    shown
}

/// Like [`visible`], but truncated to `most` characters, and with only characters that the font of pictures has.
pub(super) fn drawn(token: &str, most: usize) -> String {
    let shown = visible(token).replace('↵', "\\n").replace('\u{fffd}', "?");
    if shown.chars().count() <= most {
        return shown;
    }
    shown.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Whether a character is invisible in a single token. Unlike in running text, this includes joiners, variation
/// selectors and unusual spaces.
fn is_unseen(letter: char) -> bool {
    is_hidden(letter)
        || (letter.is_whitespace() && letter != ' ')
        || matches!(letter, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_hidden() {
        assert_eq!(visible(" king\n"), "·king↵");
        assert_eq!(visible("\t\r\u{0}\u{202e}\u{a0}"), "\\t\\r‹U+0000›‹U+202E›‹U+00A0›");
        assert_eq!(visible(""), "‹empty›");
        assert_eq!(drawn(" \n\u{fffd}abcdef", 6), "·\\n?a…");
    }
}
