//! Attention patterns encoded as base64 text, one byte per cell.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ndarray::Array2;

/// Encodes a pattern's cells in row-major order, as fractions of `most` in 255 steps. For a causal pattern, only the
/// lower triangle is included.
pub(super) fn encoded(pattern: &Array2<f32>, most: f32, causal: bool) -> String {
    let step = |value: &f32| (value / most * 255.0).round() as u8;
    let seen = pattern.indexed_iter().filter(|((query, key), _)| !causal || key <= query);
    BASE64.encode(seen.map(|(_, value)| step(value)).collect::<Vec<_>>())
}

/// Length of the encoding of a pattern with this number of tokens.
pub(super) fn encoded_len(tokens: usize, causal: bool) -> usize {
    let cells = if causal { tokens * (tokens + 1) / 2 } else { tokens * tokens };
    cells.div_ceil(3) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_patterns_are_the_triangle() {
        let pattern = Array2::from_shape_vec((2, 2), vec![1.0, 0.0, 0.25, 0.75]).unwrap_or_default();
        assert_eq!(encoded(&pattern, 1.0, true), BASE64.encode([255, 64, 191]));
        assert_eq!(encoded(&pattern, 1.0, false), BASE64.encode([255, 0, 64, 191]));
        assert_eq!(encoded(&pattern, 1.0, true).len(), encoded_len(2, true));
    }
}
