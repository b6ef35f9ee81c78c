//! Color scales suitable for color-blind readers.

use plotters::style::RGBColor;

use super::number_text::short;

/// The colors of a [`Heatmap`](crate::Heatmap). All are suitable for color-blind readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Colormap {
    /// Blue, white, red (ColorBrewer's RdBu), with white at the middle of the range, which is zero by default.
    RdBu,
    /// White to dark blue (ColorBrewer's Blues).
    Blues,
    /// Matplotlib's viridis: dark blue, green, yellow.
    Viridis,
    /// White to black, for print.
    Grays,
}

type Stops = [[u8; 3]; 9];

/// A color scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    /// Value at the lower end.
    least: f64,
    /// Value at the upper end.
    most: f64,
    map: Colormap,
}

/// ColorBrewer's RdBu, from blue to red.
const RDBU: Stops = [
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
pub(super) const BLUES: Stops = [
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

const VIRIDIS: Stops = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];

const GRAYS: Stops = [
    [255, 255, 255],
    [240, 240, 240],
    [217, 217, 217],
    [189, 189, 189],
    [150, 150, 150],
    [115, 115, 115],
    [82, 82, 82],
    [37, 37, 37],
    [0, 0, 0],
];

/// The color of NaN.
pub(super) const NONE: RGBColor = RGBColor(190, 190, 190);

/// The color that faded cells are mixed with.
const FADED: [u8; 3] = [228, 228, 228];
/// The fraction of [`FADED`] in the color of a faded cell.
const FADING: f64 = 0.8;

/// A color for a value that may be zero: nearly gray, with a trace of the color of the value.
pub(super) fn faded(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let mix = |own: u8, gray: u8| (f64::from(own) * (1.0 - FADING) + f64::from(gray) * FADING).round() as u8;
    RGBColor(mix(red, FADED[0]), mix(green, FADED[1]), mix(blue, FADED[2]))
}

/// Formats a color for CSS.
pub(super) fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

impl Scale {
    /// The scale that covers all these values: diverging around zero if any is negative, otherwise from zero.
    pub(super) fn of<'v>(values: impl Iterator<Item = &'v f64>) -> Self {
        let (mut least, mut most) = (0.0f64, 0.0f64);
        for value in values.filter(|value| value.is_finite()) {
            (least, most) = (least.min(*value), most.max(*value));
        }
        if least < 0.0 {
            let most = most.max(-least);
            return Self { least: -most, most, map: Colormap::RdBu };
        }
        Self::rising(if most > 0.0 { most } else { 1.0 })
    }

    /// A scale from white at zero to dark blue at `most`.
    pub(super) fn rising(most: f64) -> Self {
        Self { least: 0.0, most, map: Colormap::Blues }
    }

    /// The scale with these values at its ends.
    pub(super) fn between(self, (least, most): (f64, f64)) -> Self {
        let map = if least >= 0.0 && self.map == Colormap::RdBu { Colormap::Blues } else { self.map };
        let map = if least < 0.0 && most > 0.0 { Colormap::RdBu } else { map };
        Self { least, most, map }
    }

    /// The scale in other colors.
    pub(super) fn with(self, map: Colormap) -> Self {
        Self { map, ..self }
    }

    /// The values at the two ends.
    pub(super) fn ends(self) -> (f64, f64) {
        (self.least, self.most)
    }

    pub(super) fn color(self, value: f64) -> RGBColor {
        if value.is_nan() {
            return NONE;
        }
        let stops = match self.map {
            Colormap::RdBu => &RDBU,
            Colormap::Blues => &BLUES,
            Colormap::Viridis => &VIRIDIS,
            Colormap::Grays => &GRAYS,
        };
        let place = ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0) * (stops.len() - 1) as f64;
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
        hex(self.color(value))
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

    /// Whether white text has a higher contrast than black text on this value's color (WCAG 2).
    pub(super) fn is_dark(self, value: f64) -> bool {
        is_dark(self.color(value))
    }
}

/// Whether white text has a higher contrast than black text on this color (WCAG 2).
pub(super) fn is_dark(RGBColor(red, green, blue): RGBColor) -> bool {
    let linear = |part: u8| {
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) < 0.179
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

    #[test]
    fn values_outside_a_range_have_the_colors_of_its_ends() {
        for map in [Colormap::RdBu, Colormap::Blues, Colormap::Viridis, Colormap::Grays] {
            let scale = Scale::of([5.0].iter()).between((-1.0, 1.0)).with(map);
            assert_eq!((scale.color(5.0), scale.color(-5.0)), (scale.color(1.0), scale.color(-1.0)));
            assert_ne!(scale.color(1.0), scale.color(-1.0));
        }
        assert_eq!(Scale::of([-1.0].iter()).between((0.0, 1.0)).color(0.0), RGBColor(247, 251, 255));
        assert_eq!(Scale::of([1.0].iter()).between((-1.0, 1.0)).color(0.0), RGBColor(247, 247, 247));
    }
}
