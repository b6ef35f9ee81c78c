//! JSON as Python writes it, which has words for numbers that JSON lacks.

use serde_json::Value;

/// Words of Python's for numbers that are not finite.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Values of a file at most: each takes many times the memory of its text.
const MOST: usize = 1 << 21;

/// The most values that a text may have, if it has more.
pub(crate) fn too_many_values(text: &[u8]) -> Option<usize> {
    if text.len() <= MOST {
        return None;
    }
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b':' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    (count > MOST).then_some(MOST)
}

/// The value of a text; numbers that are not finite are `null`, as fields that say nothing are.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text).or_else(|error| match with_nulls(text) {
        Some(text) => serde_json::from_slice(&text),
        None => Err(error),
    })
}

/// The text with `null` for each of Python's words that is not within a string, if there is one.
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
            // What is escaped ends no string.
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
        assert!(parse(text).is_err()); // 1e400 is no number of ours.
        let text = String::from_utf8_lossy(text).replace(r#", "n": 1e400"#, "");
        assert_eq!(parse(text.as_bytes()).unwrap(), wanted);
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        let many = |unit: &str| format!("[{}0]", unit.repeat(MOST));
        assert_eq!(too_many_values(many("0,").as_bytes()), Some(MOST));
        assert_eq!(too_many_values(format!("[\"\\\"{}\"]", ",:[{".repeat(MOST)).as_bytes()), None);
        assert_eq!(too_many_values(many(" ").as_bytes()), None);
    }

    #[test]
    fn other_words_are_errors() {
        for text in ["{\"a\": Infinit}", "Infinity2", "\"Infinity", "{\"a\": infinity}", "\\"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
