//! Drawing primitives in units, and the colors of series.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::draw::{BLACK_INK, FINE, failed, write};
use super::font;
use crate::error::PlotError;

/// Okabe and Ito's colors, without yellow, which is too light for a line on white.
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// The color of a series.
pub(super) fn color(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Converts a position from units to dots.
pub(super) fn dot((x, y): (f64, f64)) -> (i32, i32) {
    ((x * f64::from(FINE)).round() as i32, (y * f64::from(FINE)).round() as i32)
}

/// Draws a line through positions, with its width in dots.
pub(super) fn path<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    places: &[(f64, f64)],
    ink: RGBColor,
    width: u32,
) -> Result<(), PlotError> {
    let places: Vec<_> = places.iter().copied().map(dot).collect();
    area.draw(&PathElement::new(places, ink.stroke_width(width))).map_err(failed)
}

/// Draws a filled polygon.
pub(super) fn polygon<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    corners: impl IntoIterator<Item = (f64, f64)>,
    ink: RGBAColor,
) -> Result<(), PlotError> {
    let corners: Vec<_> = corners.into_iter().map(dot).collect();
    area.draw(&Polygon::new(corners, ink.filled())).map_err(failed)
}

/// Draws a text whose position and size are in units.
pub(super) fn text<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    at: (f64, f64),
    size: f64,
    (across, down): (HPos, VPos),
    upright: bool,
) -> Result<(), PlotError> {
    text_in(area, text, at, size, (across, down), upright, BLACK_INK)
}

/// Draws a text in this color.
pub(super) fn text_in<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    at: (f64, f64),
    size: f64,
    (across, down): (HPos, VPos),
    upright: bool,
    ink: RGBColor,
) -> Result<(), PlotError> {
    if text.is_empty() {
        return Ok(());
    }
    write(area, text, dot(at), size * f64::from(FINE), across, down, upright, &ink)
}

/// Approximate width of a text, either in the font of PNG images or in a browser's font, whichever is larger. The
/// drawing library draws text smaller than its nominal size.
pub(super) fn wide(text: &str, size: f64) -> f64 {
    font::ready();
    let drawn = (font::FAMILY, size * f64::from(FINE)).into_font().box_size(text);
    let drawn = drawn.map_or(0.0, |(width, _)| f64::from(width) / f64::from(FINE));
    drawn.max(font::width(text, size) * 0.85)
}

/// Truncates a text to at most `most` characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.into() } else { text.chars().take(most - 1).chain(['…']).collect() }
}
