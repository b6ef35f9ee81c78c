//! Parsing of large numbers, such as a number of tokens.

/// Parses `1000000`, `1_000_000`, `1M`, `20k`, `1.5B` or `1e6`.
pub(super) fn parse(text: &str) -> Result<usize, String> {
    let wrong = || "expected a whole number, such as 1000000, 1M or 1e6".to_string();
    let text = text.trim().replace('_', "");
    let (number, scale) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'b' | 'B' | 'g' | 'G')) => (&text[..at], 1e9),
        _ => match text.parse() {
            Ok(number) => return Ok(number),
            Err(_) => (&text[..], 1.0),
        },
    };
    let number = number.parse::<f64>().map_err(|_| wrong())? * scale;
    // Above 2^53, f64 cannot represent every integer.
    let whole = number.fract() == 0.0 && (0.0..=(1u64 << 53) as f64).contains(&number);
    if whole { Ok(number as usize) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn numbers_may_have_a_scale() {
        let sound = [("20000", 20_000), ("1_000", 1000), ("1M", 1_000_000), ("1.5k", 1500), ("2B", 2_000_000_000)];
        for (text, number) in sound.into_iter().chain([("1e4", 10_000), ("2.5e3", 2500), (" 7 ", 7), ("0", 0)]) {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        for text in ["", "M", "-1", "1.5", "1e-3", "12 apples", "inf", "nan", "1e300", "0.0001k"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
