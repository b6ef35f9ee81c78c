//! The frame of a plot: ticks, axis names, title and legend.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::draw::{BLACK_INK, FINE, LABELS, NAMES, TITLE, failed};
use super::font;
use super::label_choice::LabelChoice;
use super::pen::{cut, path, text, wide};
use super::ticks::Span;
use crate::error::PlotError;

/// Maximum number of points or bars in a picture.
pub(super) const MOST: usize = 250_000;
/// Width of the plot area in units, narrow enough that text stays readable in a page's column.
pub(super) const WIDTH: f64 = 400.0;
pub(super) const HEIGHT: f64 = 250.0;
/// Maximum number of characters of a name in the legend.
const NAME_LETTERS: usize = 44;
/// Height of a row of the legend.
const ROW: f64 = 18.0;
/// Width of the swatch before a name in the legend.
pub(super) const SWATCH: f64 = 22.0;
const SPACE: f64 = 8.0;
const GRID: RGBColor = RGBColor(228, 228, 228);
const ZERO: RGBColor = RGBColor(150, 150, 150);

/// One of the two axes.
pub(super) struct FrameAxis<'a> {
    pub(super) name: &'a str,
    /// The range of values.
    pub(super) span: Span,
    pub(super) ticks: Ticks<'a>,
    /// Whether a grid line is drawn at each tick.
    pub(super) ruled: bool,
}

/// The labels of an axis.
#[derive(Clone, Copy)]
pub(super) enum Ticks<'a> {
    /// Round numbers, or only integers.
    Numbers { whole: bool },
    /// Texts at 0, 1, ... from left to right or from top to bottom, and the magnitude of the value at each. If not all
    /// texts fit, those with the largest magnitudes are drawn, and the axis name says how many fit.
    Labels(&'a [String], &'a [f64]),
}

/// Positions and sizes, in units.
pub(super) struct Frame {
    title: String,
    x: String,
    y: String,
    left: f64,
    top: f64,
    inner: (f64, f64),
    /// Whether the labels of the x axis are vertical because they do not fit side by side.
    upright: bool,
    below: f64,
    across: Span,
    up: Span,
    x_ticks: Vec<(f64, String)>,
    y_ticks: Vec<(f64, String)>,
    /// Whether grid lines are drawn at the ticks of the x axis and of the y axis.
    ruled: (bool, bool),
    /// Upper left corner and name of each legend entry.
    legend: Vec<((f64, f64), String)>,
    /// A remark at the bottom.
    note: String,
    pub(super) size: (u32, u32),
}

impl Frame {
    /// Lays out a frame around an area of this width and height, with a legend of these names.
    pub(super) fn new(
        title: &str,
        inner @ (width, height): (f64, f64),
        x: &FrameAxis<'_>,
        y: &FrameAxis<'_>,
        legend: &[&str],
    ) -> Self {
        let (across, up) = (x.span, y.span);
        let (mut x_name, mut y_name) = (x.name.to_string(), y.name.to_string());
        let y_ticks = match y.ticks {
            Ticks::Numbers { whole } => up.ticks(8, whole),
            Ticks::Labels(labels, strength) => {
                let choice = LabelChoice::of(labels, height / (up.most - up.least), LABELS + 1.0, |at| strength[at]);
                y_name = choice.axis_name(&y_name);
                choice.shown.iter().map(|at| (-(*at as f64), labels[*at].clone())).collect()
            }
        };
        let left = widest(y_ticks.iter().map(|(_, text)| text)) + NAMES + 24.0;
        let (x_ticks, upright, below) = match x.ticks {
            Ticks::Numbers { whole } => (across.ticks(8, whole), false, LABELS),
            Ticks::Labels(labels, strength) => {
                let (pitch, room) = (width / (across.most - across.least), widest(labels.iter()));
                let upright = labels.len() > 1 && room + 6.0 > pitch && room > LABELS;
                let room_of_one = if upright { LABELS + 1.0 } else { room + 6.0 };
                let choice = LabelChoice::of(labels, pitch, room_of_one, |at| strength[at]);
                x_name = choice.axis_name(&x_name);
                let ticks = choice.shown.iter().map(|at| (*at as f64, labels[*at].clone()));
                (ticks.collect(), upright, if upright { room } else { LABELS })
            }
        };

        // Names in the legend are placed one after another like words or, if there are many, in aligned columns.
        let heading = if title.is_empty() { 8.0 } else { TITLE + 20.0 };
        let names: Vec<String> = legend.iter().map(|name| cut(name, NAME_LETTERS)).collect();
        let widths: Vec<f64> = names.iter().map(|name| SWATCH + SPACE + wide(name, LABELS) + 16.0).collect();
        let widest = widths.iter().copied().fold(0.0, f64::max);
        let (mut x_at, mut top, mut corners) = (left, heading, Vec::new());
        for width_of in &widths {
            let width_of = if widths.len() > 4 { widest } else { *width_of };
            if x_at > left && x_at + width_of > left + width + 14.0 {
                (x_at, top) = (left, top + ROW);
            }
            corners.push((x_at, top));
            x_at += width_of;
        }
        let top = if corners.is_empty() { heading + 4.0 } else { top + ROW + 8.0 };
        let below = below + NAMES + 26.0;
        let title_width = wide(title, TITLE) + 24.0;
        let size = ((left + width + 16.0).max(title_width).ceil() as u32, (top + height + below).ceil() as u32);
        Self {
            title: title.into(),
            x: x_name,
            y: y_name,
            left,
            top,
            inner,
            upright,
            below,
            across,
            up,
            x_ticks,
            y_ticks,
            ruled: (x.ruled, y.ruled),
            legend: corners.into_iter().zip(names).collect(),
            note: String::new(),
            size,
        }
    }

    /// Adds a remark at the bottom.
    pub(super) fn with_note(mut self, note: String) -> Self {
        self.size.1 += ROW as u32;
        self.size.0 = self.size.0.max((self.left + wide(&note, LABELS) + 16.0).ceil() as u32);
        Self { note, ..self }
    }

    /// The horizontal position of a value.
    pub(super) fn x(&self, value: f64) -> f64 {
        self.left + self.inner.0 * self.across.share(value)
    }

    /// The vertical position of a value.
    pub(super) fn y(&self, value: f64) -> f64 {
        self.bottom() - self.inner.1 * self.up.share(value)
    }

    /// Left, top, right and bottom of the plot area.
    pub(super) fn edges(&self) -> [f64; 4] {
        [self.left, self.top, self.left + self.inner.0, self.bottom()]
    }

    fn bottom(&self) -> f64 {
        self.top + self.inner.1
    }

    /// Draws the background: the title, ticks, grid lines, and the axes' names.
    pub(super) fn begin<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), PlotError> {
        font::ready();
        area.fill(&WHITE).map_err(failed)?;
        if !self.title.is_empty() {
            text(area, &self.title, (12.0, 12.0), TITLE, (HPos::Left, VPos::Top), false)?;
        }
        let [left, top, right, bottom] = self.edges();
        let shade = |value: f64| if value == 0.0 { ZERO } else { GRID };
        for (value, label) in &self.y_ticks {
            let y = self.y(*value);
            if self.ruled.1 {
                path(area, &[(left, y), (right, y)], shade(*value), FINE)?;
            }
            text(area, label, (left - 7.0, y), LABELS, (HPos::Right, VPos::Center), false)?;
        }
        for (value, label) in &self.x_ticks {
            let x = self.x(*value);
            if self.ruled.0 {
                path(area, &[(x, bottom), (x, top)], shade(*value), FINE)?;
            }
            path(area, &[(x, bottom), (x, bottom + 4.0)], BLACK_INK, FINE)?;
            let anchor = if self.upright { (HPos::Right, VPos::Center) } else { (HPos::Center, VPos::Top) };
            text(area, label, (x, bottom + 8.0), LABELS, anchor, self.upright)?;
        }
        let under = bottom + self.below - NAMES - 8.0;
        text(area, &self.x, ((left + right) / 2.0, under), NAMES, (HPos::Center, VPos::Top), false)?;
        if !self.note.is_empty() {
            let last = (left, bottom + self.below);
            text(area, &self.note, last, LABELS, (HPos::Left, VPos::Top), false)?;
        }
        let beside = (13.0, top + self.inner.1 / 2.0);
        text(area, &self.y, beside, NAMES, (HPos::Center, VPos::Center), true)
    }

    /// Draws the foreground: the frame and the legend. `swatch` draws each swatch, [`SWATCH`] wide, given the middle of
    /// its left edge.
    pub(super) fn end<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        mut swatch: impl FnMut(usize, (f64, f64)) -> Result<(), PlotError>,
    ) -> Result<(), PlotError> {
        // Drawn as a path, because the drawing library ignores the line width of SVG rectangles.
        let [left, top, right, bottom] = self.edges();
        path(area, &[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], BLACK_INK, FINE)?;
        for (number, ((x, y), name)) in self.legend.iter().enumerate() {
            let middle = y + ROW / 2.0;
            swatch(number, (*x, middle))?;
            text(area, name, (x + SWATCH + SPACE - 2.0, middle), LABELS, (HPos::Left, VPos::Center), false)?;
        }
        area.present().map_err(failed)
    }
}

fn widest<'t>(texts: impl Iterator<Item = &'t String>) -> f64 {
    texts.map(|text| wide(text, LABELS)).fold(0.0, f64::max)
}

/// Implements the common methods of pictures with a [`Frame`]. The picture type must have a field `title` and methods
/// `frame()` and `draw(area, frame)`.
macro_rules! framed {
    ($picture:ident) => {
        impl $picture {
            /// Sets the title, drawn above the picture.
            #[must_use]
            pub fn title(mut self, title: impl Into<String>) -> Self {
                self.title = title.into();
                self
            }

            /// Saves the picture to a file atomically, as SVG, PNG or HTML depending on the file's extension.
            ///
            /// # Errors
            /// [`PlotError::Kind`] for any other extension; [`PlotError::Draw`] if drawing fails; [`PlotError::Write`]
            /// if the file cannot be written.
            pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), PlotError> {
                use $crate::picture::Picture as _;
                let page = || Ok($crate::page::of_picture(&self.title, &self.to_svg()?));
                $crate::draw::save(path.as_ref(), || self.to_svg(), || self.to_png(2), page)
            }
        }

        impl $crate::picture::Picture for $picture {
            fn to_svg(&self) -> Result<String, PlotError> {
                let frame = self.frame();
                $crate::draw::fine_svg(frame.size, |area| self.draw(&area, &frame))
            }

            fn to_png(&self, scale: u32) -> Result<Vec<u8>, PlotError> {
                let frame = self.frame();
                $crate::draw::fine_png(frame.size, scale, |area| self.draw(&area, &frame))
            }
        }
    };
}
pub(super) use framed;
