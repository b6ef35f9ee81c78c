//! Drawing code shared by all pictures: fonts, the color bar, and saving to files.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::color::Scale;
use super::font;
use crate::error::PlotError;
use hooklens_io::shown_text::shown;

/// Font sizes, in pixels.
pub(super) const TITLE: f64 = 18.0;
pub(super) const NAMES: f64 = 14.0;
pub(super) const LABELS: f64 = 12.0;
pub(super) const BLACK_INK: RGBColor = RGBColor(30, 30, 30);
/// Dots per unit in pictures with lines. These pictures are drawn enlarged because the drawing library uses integer
/// coordinates.
pub(super) const FINE: u32 = 4;

/// Renders a picture as SVG.
pub(super) fn svg(
    size: (u32, u32),
    draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    draw(SVGBackend::with_string(&mut svg, size).into_drawing_area())?;
    Ok(svg)
}

/// Renders a picture as PNG.
pub(super) fn png(
    size: (u32, u32),
    draw: impl FnOnce(DrawingArea<BitMapBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    encoded(size, &dots(size, draw)?)
}

/// Renders a picture's pixels, three bytes each, in row order.
fn dots(
    (width, height): (u32, u32),
    draw: impl FnOnce(DrawingArea<BitMapBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    let mut dots = vec![255; width as usize * height as usize * 3];
    draw(BitMapBackend::with_buffer(&mut dots, (width, height)).into_drawing_area())?;
    Ok(dots)
}

/// Fills an area with white and draws the title.
pub(super) fn begin<B: DrawingBackend>(area: &DrawingArea<B, Shift>, title: &str) -> Result<(), PlotError> {
    font::ready();
    area.fill(&WHITE).map_err(failed)?;
    match title {
        "" => Ok(()),
        title => write(area, title, (12, 12), TITLE, HPos::Left, VPos::Top, false, &BLACK_INK),
    }
}

/// Renders a picture that is drawn at [`FINE`] times its size as SVG, scaled down to its size.
pub(super) fn fine_svg(
    (width, height): (u32, u32),
    draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let drawn = (width * FINE, height * FINE);
    let svg = svg(drawn, draw)?;
    let size = |(width, height): (u32, u32)| format!("width=\"{width}\" height=\"{height}\"");
    Ok(svg.replacen(&size(drawn), &size((width, height)), 1))
}

/// Renders a picture that is drawn at [`FINE`] times its size as PNG at twice its size. Each pixel is the average of 2
/// by 2 dots.
pub(super) fn fine_png(
    (width, height): (u32, u32),
    draw: impl FnOnce(DrawingArea<BitMapBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    let (across, down) = (width * FINE, height * FINE);
    let fine = dots((across, down), draw)?;
    let row = across as usize * 3;
    let mut dots = Vec::with_capacity(fine.len() / 4);
    for pair in fine.chunks_exact(2 * row) {
        let (upper, lower) = pair.split_at(row);
        for (upper, lower) in upper.chunks_exact(6).zip(lower.chunks_exact(6)) {
            let sum = |channel: usize| {
                [upper, lower].iter().map(|two| u16::from(two[channel]) + u16::from(two[channel + 3])).sum::<u16>()
            };
            dots.extend([0, 1, 2].map(|channel| ((sum(channel) + 2) / 4) as u8));
        }
    }
    encoded((across / 2, down / 2), &dots)
}

/// Renders an image with one color per pixel as PNG.
pub(super) fn dot_png(
    (width, height): (u32, u32),
    color: impl Fn(usize, usize) -> RGBColor,
) -> Result<Vec<u8>, PlotError> {
    let places = (0..height as usize).flat_map(|y| (0..width as usize).map(move |x| (x, y)));
    let dots: Vec<u8> = places.flat_map(|(x, y)| <[u8; 3]>::from(color(x, y).rgb())).collect();
    encoded((width, height), &dots)
}

fn encoded((width, height): (u32, u32), dots: &[u8]) -> Result<Vec<u8>, PlotError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(dots).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}

/// Saves a picture to a file atomically, as SVG, PNG or HTML depending on the file's extension.
pub(super) fn save(
    path: &Path,
    svg: impl FnOnce() -> Result<String, PlotError>,
    png: impl FnOnce() -> Result<Vec<u8>, PlotError>,
    page: impl FnOnce() -> Result<String, PlotError>,
) -> Result<(), PlotError> {
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("svg") => svg()?.into_bytes(),
        Some("png") => png()?,
        Some("html" | "htm") => page()?.into_bytes(),
        _ => return Err(PlotError::Kind { path: path.to_path_buf(), endings: ".svg, .png or .html" }),
    };
    write_file(path, &bytes)
}

/// Writes a file atomically.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), PlotError> {
    let failed = |source: std::io::Error| PlotError::Write { path: path.to_path_buf(), source };
    hooklens_hooks::write_file(path, bytes).map_err(failed)
}

/// Draws the color bar, 84 pixels wide including the values next to it.
pub(super) fn bar<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    scale: Scale,
    (x, y): (i32, i32),
) -> Result<(), PlotError> {
    const HEIGHT: i32 = 120;
    let (least, most) = scale.ends();
    for step in 0..HEIGHT {
        let value = most - (most - least) * f64::from(step) / f64::from(HEIGHT - 1);
        let line = Rectangle::new([(x, y + step), (x + 14, y + step + 1)], scale.color(value).filled());
        area.draw(&line).map_err(failed)?;
    }
    area.draw(&Rectangle::new([(x, y), (x + 14, y + HEIGHT)], BLACK_INK.stroke_width(1))).map_err(failed)?;
    for share in [0.0, 0.5, 1.0] {
        let value = most - (most - least) * share;
        let middle = (x + 20, y + (f64::from(HEIGHT) * share) as i32);
        write(area, &short(value), middle, LABELS, HPos::Left, VPos::Center, false, &BLACK_INK)?;
    }
    Ok(())
}

/// Stride between axis labels, so that they do not overlap.
pub(super) fn every(count: usize, apart: f64, room: f64) -> usize {
    ((room / apart.max(1e-9)).ceil().max(1.0) as usize).min(count.max(1))
}

/// Formats a number with few characters.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(0.01..1000.0).contains(&size) => format!("{value:.1e}"),
        size if size < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Draws a single line of text. Hidden characters, some of which SVG forbids, are shown by name.
#[allow(clippy::too_many_arguments)]
pub(super) fn write<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    at: (i32, i32),
    size: f64,
    across: HPos,
    down: VPos,
    upright: bool,
    ink: &RGBColor,
) -> Result<(), PlotError> {
    let font = (font::FAMILY, size).into_font();
    let font = if upright { font.transform(FontTransform::Rotate270) } else { font };
    let style = TextStyle::from(font).color(ink).pos(Pos::new(across, down));
    let text = shown(text).replace(['\n', '\t'], " ");
    area.draw(&Text::new(text, at, style)).map_err(failed)
}

pub(super) fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError::Draw { reason: error.to_string() }
}
