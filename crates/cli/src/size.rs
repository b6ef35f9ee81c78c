//! Parsing of sizes in bytes.

/// Parses `8GB`, `1.5GiB`, `64MB`, or a number of bytes.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err("unknown unit; expected KB, MB, GB, TB, KiB, MiB, GiB or TiB".to_string()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number and a unit, such as 8GB".to_string())?;
    let bytes = number * scale as f64;
    if bytes < 1.0 || bytes >= u64::MAX as f64 {
        Err("the size must be at least 1 byte and less than 16 EiB".to_string())
    } else {
        Ok(bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        let sound = [("8GB", 8_000_000_000), ("1 GiB", 1 << 30), ("1.5kb", 1500), ("70000", 70_000), ("2MiB", 2 << 20)];
        for (text, bytes) in sound {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "0", "-1GB", "1.2.3GB", "8 apples", "99999999TB", "."] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
