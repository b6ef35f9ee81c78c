//! Formatting of byte counts and large integers.

use unit_prefix::NumberPrefix;

/// Formats a number of bytes, such as `1.2 MB`.
pub fn bytes(count: u64) -> String {
    match NumberPrefix::decimal(count as f64) {
        NumberPrefix::Standalone(count) => format!("{count} B"),
        NumberPrefix::Prefixed(prefix, value) => format!("{value:.1} {prefix}B"),
    }
}

/// Formats an integer with commas between thousands.
pub fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_read_well() {
        assert_eq!(super::bytes(999), "999 B");
        assert_eq!(super::bytes(4000), "4.0 kB");
        assert_eq!(super::bytes(1_234_567), "1.2 MB");
        assert_eq!(super::bytes(u64::MAX), "18.4 EB");
        assert_eq!(super::grouped(0), "0");
        assert_eq!(super::grouped(124_439_808), "124,439,808");
    }
}
