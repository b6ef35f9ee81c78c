//! Parses JSON as written by Python, which has words for non-finite numbers.

use serde_json::Value;

/// Python's words for non-finite numbers.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Parses JSON text. Non-finite numbers become `null`, which counts as an unset field.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text).or_else(|error| match with_nulls(text) {
        Some(text) => serde_json::from_slice(&text),
        None => Err(error),
    })
}

/// Replaces Python's words outside strings with `null`; `None` if there are none.
fn with_nulls(text: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::with_capacity(text.len());
    let (mut at, mut quoted, mut found) = (0, false, false);
    while let Some(byte) = text.get(at) {
        let word = WORDS.iter().find(|word| !quoted && text[at..].starts_with(word));
        if let Some(word) = word {
            written.extend(b"null");
            at += word.len();
            found = true;
            continue;
        }
        match byte {
            b'"' => quoted = !quoted,
            // An escaped character does not end the string.
            b'\\' if quoted => {
                written.push(*byte);
                at += 1;
            }
            _ => {}
        }
        written.extend(text.get(at));
        at += 1;
    }
    found.then_some(written)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_are_not_finite_are_null() {
        let text = br#"{"limit": [0.0, Infinity, -Infinity], "NaN": NaN, "text": "an \" Infinity\\", "n": 1e400}"#;
        let wanted = json!({"limit": [0.0, null, null], "NaN": null, "text": "an \" Infinity\\"});
        assert!(parse(text).is_err()); // the number is out of range
        let text = String::from_utf8_lossy(text).replace(r#", "n": 1e400"#, "");
        assert_eq!(parse(text.as_bytes()).unwrap(), wanted);
    }

    #[test]
    fn other_words_are_errors() {
        for text in ["{\"a\": Infinit}", "Infinity2", "\"Infinity", "{\"a\": infinity}", "\\"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
