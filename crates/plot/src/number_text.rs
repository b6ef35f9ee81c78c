//! Numbers as texts in pictures and pages.

/// Formats a number with few characters, for axes and legends. Numbers of ordinary size have no exponent.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-4..1e6).contains(&size) => format!("{value:.1e}"),
        size if size < 0.01 => format!("{value:.digits$}", digits = (1.0 - size.log10().floor()) as usize),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a number with six significant digits, without trailing zeros.
pub(super) fn precise(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    // Rounded to the digits shown, and then written with as few digits as that number needs.
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    if (1e-4..1e9).contains(&size) { rounded.to_string() } else { format!("{rounded:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_numbers_have_no_exponent() {
        let texts = [0.0, -0.0, 0.5163, -4.72, 0.0051, 0.00012, 12.71, 345.6, 1234.5, 2.5e6, 3e-6].map(short);
        assert_eq!(texts, ["0", "0", "0.52", "-4.72", "0.0051", "0.00012", "12.7", "346", "1234", "2.5e6", "3.0e-6"]);
    }

    #[test]
    fn precise_numbers_are_short_where_they_can_be() {
        let widened = f64::from(0.3f32);
        let texts = [0.0, widened, -1.0 / 3.0, 1e-5, 123_456.7, 2.0, 1e12, f64::NAN, f64::NEG_INFINITY].map(precise);
        assert_eq!(texts, ["0", "0.3", "-0.333333", "1e-5", "123457", "2", "1e12", "NaN", "-inf"]);
    }
}
