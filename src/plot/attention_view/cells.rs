//! Patterns as text: a byte a cell, in base 64.

use ndarray::Array2;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A pattern's cells, row by row, each as its share of `most` in 255 steps; of a causal one only what queries see.
pub(super) fn encoded(pattern: &Array2<f32>, most: f32, causal: bool) -> String {
    let step = |value: &f32| (value / most * 255.0).round() as u8;
    let seen = pattern.indexed_iter().filter(|((query, key), _)| !causal || key <= query);
    base64(&seen.map(|(_, value)| step(value)).collect::<Vec<_>>())
}

/// Letters a pattern of so many tokens takes.
pub(super) fn encoded_len(tokens: usize, causal: bool) -> usize {
    let cells = if causal { tokens * (tokens + 1) / 2 } else { tokens * tokens };
    cells.div_ceil(3) * 4
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { letter as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_letters() {
        let each = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        assert!(each.iter().all(|(bytes, text)| base64(bytes.as_bytes()) == *text));
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn causal_patterns_are_the_triangle() {
        let pattern = Array2::from_shape_vec((2, 2), vec![1.0, 0.0, 0.25, 0.75]).unwrap_or_default();
        assert_eq!(encoded(&pattern, 1.0, true), base64(&[255, 64, 191]));
        assert_eq!(encoded(&pattern, 1.0, false), base64(&[255, 0, 64, 191]));
        assert_eq!(encoded(&pattern, 1.0, true).len(), encoded_len(2, true));
    }
}
