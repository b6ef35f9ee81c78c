//! JSON embedded in HTML pages.

use serde_json::Value;

use crate::shown_text::escaped_json;

/// Formats JSON for a script element: the text can't end the element or start a comment, and has no characters that are
/// invisible in the page's source.
pub fn script_json(value: &Value) -> String {
    let json = value.to_string();
    let mut safe = String::with_capacity(json.len());
    for letter in escaped_json(&json).chars() {
        match letter {
            '<' | '>' | '&' => safe.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => safe.push(letter),
        }
    }
    safe
}
