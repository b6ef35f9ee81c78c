//! Estimates how much memory a JSON text takes once it is parsed, without parsing it.

/// Size of a value in a list.
pub(crate) const VALUE: usize = 72;
/// Size of the allocation for a list's first value, with room for four values.
pub(crate) const LIST: usize = 4 * VALUE;
/// Size of the allocations for an object's first field: a hash table, and room for four fields.
pub(crate) const OBJECT: usize = 500;
/// Size of each further field, with the allocation for its name.
pub(crate) const FIELD: usize = 140;
/// Size of a number in a list of numbers.
const NUMBER: usize = 8;
/// Size of a string in a list of strings, with the overhead of its allocation.
const TEXT: usize = 56;

/// An upper bound on the memory of a JSON text's parsed values in bytes, including the contents of strings.
pub fn estimate(text: &[u8]) -> usize {
    let mut size = text.len();
    each_sign(text, |sign| match sign {
        b',' => size += VALUE,
        b':' => size += FIELD,
        b'[' => size += LIST,
        b'{' => size += OBJECT,
        _ => {}
    });
    size
}

/// Like [`estimate`], for a JSON text that consists of lists of numbers and lists of strings.
pub fn estimate_lists(text: &[u8]) -> usize {
    let mut size = text.len();
    each_sign(text, |sign| match sign {
        b',' => size += NUMBER,
        // Each string has two quotes.
        b'"' => size += TEXT / 2,
        _ => {}
    });
    size
}

/// Calls `count` on each byte outside of strings, and on the quotes of strings.
fn each_sign(text: &[u8], mut count: impl FnMut(u8)) {
    let (mut quoted, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => {
                quoted = !quoted;
                count(b'"');
            }
            _ if quoted => {}
            _ => count(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn values_are_as_large_as_estimated() {
        assert!(size_of::<Value>() <= VALUE && size_of::<(u64, String, Value)>() <= FIELD - 32);
    }

    #[test]
    fn texts_count_only_their_length() {
        assert_eq!(estimate(br#"",:[{\",:[{""#), 12);
        assert_eq!(estimate(br#"[{"a": 1, "b": 2}, 3]"#), 21 + LIST + OBJECT + 2 * FIELD + 2 * VALUE);
        assert_eq!(estimate_lists(br#"[["a,", "\""], [1, 2]]"#), 22 + 2 * TEXT + 3 * NUMBER);
    }
}
