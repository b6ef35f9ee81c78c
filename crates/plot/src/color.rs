//! Color scales suitable for color-blind readers.

use plotters::style::RGBColor;

use super::draw::short;

/// A color scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Blue below zero, white at zero, red above; the largest magnitude is darkest.
    Diverging { most: f64 },
    /// White at zero, dark blue at the maximum.
    Rising { most: f64 },
}

/// ColorBrewer's RdBu, from blue to red.
const DIVERGING: [[u8; 3]; 9] = [
    [33, 102, 172],
    [67, 147, 195],
    [146, 197, 222],
    [209, 229, 240],
    [247, 247, 247],
    [253, 219, 199],
    [244, 165, 130],
    [214, 96, 77],
    [178, 24, 43],
];

/// ColorBrewer's Blues.
pub(super) const RISING: [[u8; 3]; 9] = [
    [247, 251, 255],
    [222, 235, 247],
    [198, 219, 239],
    [158, 202, 225],
    [107, 174, 214],
    [66, 146, 198],
    [33, 113, 181],
    [8, 81, 156],
    [8, 48, 107],
];

/// The color of NaN.
const NONE: RGBColor = RGBColor(190, 190, 190);

impl Scale {
    /// The scale that covers all these values.
    pub(super) fn of<'v>(values: impl Iterator<Item = &'v f64>) -> Self {
        let (mut least, mut most) = (0.0f64, 0.0f64);
        for value in values.filter(|value| value.is_finite()) {
            (least, most) = (least.min(*value), most.max(*value));
        }
        let some = |most: f64| if most > 0.0 { most } else { 1.0 };
        if least < 0.0 { Self::Diverging { most: some(most.max(-least)) } } else { Self::Rising { most: some(most) } }
    }

    /// The values at the two ends.
    pub(super) fn ends(self) -> (f64, f64) {
        match self {
            Self::Diverging { most } => (-most, most),
            Self::Rising { most } => (0.0, most),
        }
    }

    pub(super) fn color(self, value: f64) -> RGBColor {
        if value.is_nan() {
            return NONE;
        }
        let (least, most) = self.ends();
        let stops = if least < 0.0 { &DIVERGING } else { &RISING };
        let place = ((value - least) / (most - least)).clamp(0.0, 1.0) * (stops.len() - 1) as f64;
        let below = (place as usize).min(stops.len() - 2);
        let share = place - below as f64;
        let mix = |channel: usize| {
            let (a, b) = (f64::from(stops[below][channel]), f64::from(stops[below + 1][channel]));
            (a + (b - a) * share).round() as u8
        };
        RGBColor(mix(0), mix(1), mix(2))
    }

    /// [`Scale::color`] as a CSS color.
    pub(super) fn hex(self, value: f64) -> String {
        let RGBColor(red, green, blue) = self.color(value);
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    /// An HTML legend of the scale.
    pub(super) fn legend(self) -> String {
        let (least, most) = self.ends();
        let stops: Vec<String> = (0..=8).map(|step| self.hex(least + (most - least) * f64::from(step) / 8.0)).collect();
        format!(
            "{} <span style=\"display: inline-block; width: 90px; height: 11px; border: 1px solid #767676; background: \
             linear-gradient(to right, {})\"></span> {}",
            short(least),
            stops.join(", "),
            short(most)
        )
    }

    /// Whether text on this color should be white.
    pub(super) fn is_dark(self, value: f64) -> bool {
        let RGBColor(r, g, b) = self.color(value);
        299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) < 128_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_in_the_middle_of_a_diverging_scale() {
        let scale = Scale::of([-3.0, 1.0].iter());
        assert_eq!(scale.ends(), (-3.0, 3.0));
        assert_eq!(scale.color(0.0), RGBColor(247, 247, 247));
        assert_eq!(scale.color(3.0), RGBColor(178, 24, 43));
        assert_eq!(Scale::of([0.0, 2.0].iter()).ends(), (0.0, 2.0));
        assert_eq!(Scale::of([f64::NAN, 0.0].iter()).ends(), (0.0, 1.0));
    }
}
