//! Axis ticks at round numbers.

/// The range of values that an axis shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Bound on magnitudes, beyond which differences would overflow.
const END: f64 = 8e307;

impl Span {
    /// The range of all finite values; 0 to 1 if there are none.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let start = (f64::INFINITY, f64::NEG_INFINITY);
        let finite = values.filter(|value| value.is_finite()).map(|value| value.clamp(-END, END));
        let (least, most) = finite.fold(start, |(least, most), value| (least.min(value), most.max(value)));
        if least > most { Self { least: 0.0, most: 1.0 } } else { Self { least, most } }
    }

    /// Widens the range by a fraction at both ends, so that it is never empty.
    pub(super) fn widened(self, share: f64) -> Self {
        let width = self.most - self.least;
        let (size, about) = (self.least.abs().max(self.most.abs()), self.least / 2.0 + self.most / 2.0);
        if width <= size * 1e-9 {
            let room = if size > 0.0 { size * 0.1 } else { 1.0 };
            return Self { least: about - room, most: about + room };
        }
        Self { least: self.least - width * share, most: self.most + width * share }
    }

    /// The relative position of a value in the range, from 0 to 1.
    pub(super) fn share(self, value: f64) -> f64 {
        ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0)
    }

    /// About `about` round numbers with their texts; only integers if `whole` is true.
    pub(super) fn ticks(self, about: usize, whole: bool) -> Vec<(f64, String)> {
        let rough = (self.most - self.least) / about.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let mut step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        if whole {
            step = step.max(1.0);
        }
        // The tolerance keeps a multiple of the step at the least value, despite rounding of the quotient.
        let least = self.least / step;
        let first = (least - (least.abs() * 4.0 * f64::EPSILON)).ceil();
        let places = (0..=2 * about).map(|number| (first + number as f64) * step);
        // Adding zero turns `-0` into `0`.
        places
            .take_while(|place| *place <= self.most + step * 1e-9)
            .map(|place| (place + 0.0, written(place + 0.0, step)))
            .collect()
    }
}

/// Formats a tick's number with enough digits to distinguish it from the next. Numbers of ordinary size have no
/// exponent.
fn written(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e7 || digits > 6 => {
            let kept = (size.log10().floor() - step.log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.kept$e}")
        }
        _ => format!("{value:.digits$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(least: f64, most: f64, whole: bool) -> Vec<String> {
        Span { least, most }.ticks(5, whole).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(-0.13, 1.02, false), ["0", "0.5", "1.0"]);
        assert_eq!(texts(-1.0, 1.0, false), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(texts(0.0, 2.0, true), ["0", "1", "2"]);
        assert_eq!(texts(0.0, 11.0, true), ["0", "5", "10"]);
        assert_eq!(texts(0.0, 2.1e6, false), ["0", "500000", "1000000", "1500000", "2000000"]);
        assert_eq!(
            texts(0.1, 0.10001, false),
            ["0.100000", "0.100002", "0.100004", "0.100006", "0.100008", "0.100010"]
        );
        assert_eq!(texts(0.0, 2.1e8, false), ["0", "5e7", "1.0e8", "1.5e8", "2.0e8"]);
        assert_eq!(texts(0.0, 3e-7, false), ["0", "1e-7", "2e-7", "3e-7"]);
    }

    #[test]
    fn any_numbers_have_a_span_with_few_ticks() {
        let hostile = [f64::NAN, f64::MAX, -f64::MAX, 1e-320, 0.0, 1e300, 1.0 + 1e-15, f64::INFINITY];
        for a in hostile {
            for b in hostile {
                let span = Span::of([a, b].into_iter()).widened(0.05);
                assert!(span.least < span.most && (span.most - span.least).is_finite(), "{a} {b}: {span:?}");
                assert!(span.ticks(5, false).len() <= 11 && (0.0..=1.0).contains(&span.share(0.5)));
            }
        }
    }
}
