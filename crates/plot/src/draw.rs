//! Drawing code shared by all pictures: rendering as SVG and PNG, texts, and saving to files.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::font;
use crate::error::PlotError;
use hooklens_io::shown_text::shown;

/// Font sizes, in pixels.
pub(super) const TITLE: f64 = 18.0;
pub(super) const NAMES: f64 = 14.0;
pub(super) const LABELS: f64 = 12.0;
pub(super) const BLACK_INK: RGBColor = RGBColor(30, 30, 30);
/// Dots per unit. Pictures are drawn enlarged because the drawing library uses integer coordinates.
pub(super) const FINE: u32 = 4;
/// Maximum number of pixels of a PNG at scale 1. The picture is drawn at [`FINE`] times its size, which takes 48 bytes of
/// memory per pixel.
const LARGEST: u64 = 1 << 24;

/// Renders a picture as SVG.
fn svg(
    size: (u32, u32),
    draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    draw(SVGBackend::with_string(&mut svg, size).into_drawing_area())?;
    Ok(svg)
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

/// Renders a picture as SVG. The picture is drawn at [`FINE`] times its size, and the SVG is scaled down to its size.
pub(super) fn fine_svg(
    (width, height): (u32, u32),
    draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let drawn = (width * FINE, height * FINE);
    let svg = svg(drawn, draw)?;
    let size = |(width, height): (u32, u32)| format!("width=\"{width}\" height=\"{height}\"");
    Ok(svg.replacen(&size(drawn), &size((width, height)), 1))
}

/// Renders a picture as PNG, with `scale` pixels per unit: 1, 2 or 4. The picture is drawn at [`FINE`] times its size,
/// and each pixel is the average of the dots that it covers.
///
/// # Errors
/// [`PlotError::Scale`] for any other scale.
pub(super) fn fine_png(
    (width, height): (u32, u32),
    scale: u32,
    draw: impl FnOnce(DrawingArea<BitMapBackend<'_>, Shift>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    if ![1, 2, 4].contains(&scale) {
        return Err(PlotError::Scale { given: scale });
    }
    if u64::from(width) * u64::from(height) > LARGEST {
        return Err(PlotError::Large { width, height, most: LARGEST });
    }
    let fine = dots((width * FINE, height * FINE), draw)?;
    let (across, side) = (width * scale, (FINE / scale) as usize);
    let mut dots = Vec::with_capacity(fine.len() / (side * side));
    let row = (width * FINE) as usize * 3;
    let mut sums = vec![[0u16; 3]; across as usize];
    for rows in fine.chunks_exact(side * row) {
        sums.fill([0; 3]);
        for row in rows.chunks_exact(row) {
            for (sum, dots) in sums.iter_mut().zip(row.chunks_exact(3 * side)) {
                for dot in dots.chunks_exact(3) {
                    (0..3).for_each(|channel| sum[channel] += u16::from(dot[channel]));
                }
            }
        }
        let area = (side * side) as u16;
        dots.extend(sums.iter().flatten().map(|sum| ((sum + area / 2) / area) as u8));
    }
    encoded((across, height * scale), &dots)
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
    let text = shown(text).replace('\n', "\\n").replace('\t', "\\t");
    area.draw(&Text::new(text, at, style)).map_err(failed)
}

pub(super) fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError::Draw { reason: error.to_string() }
}
