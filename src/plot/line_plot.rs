//! Numbers along one axis as lines.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::draw::{self, BLACK_INK, FINE, LABELS, NAMES, TITLE, every, failed, write};
use super::error::PlotError;
use super::font;
use super::line::{Line, dashes};
use super::page;
use super::ticks::Span;
use crate::labelled::LabelledArray;

/// Points a picture has at most.
const MOST: usize = 250_000;
/// Letters of a name in the legend, and of a label at the axis, at most.
const NAME_LETTERS: usize = 44;
const LABEL_LETTERS: usize = 16;
/// What the axes enclose, in units: so narrow that letters stay readable in a page's column.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 250.0;
/// A line of the legend, and what stands before a name in it.
const ROW: f64 = 18.0;
const SWATCH: f64 = 30.0;
/// Points a line has at most to have each of them marked.
const MARKED: usize = 40;
/// Okabe and Ito's colours, without yellow, which is too light for a line on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Dashes of the first seven lines, of the next and of the last, in units: on, off.
const DASHES: [Option<(f64, f64)>; 3] = [None, Some((7.0, 4.0)), Some((2.0, 3.0))];
const GRID: RGBColor = RGBColor(228, 228, 228);
const ZERO: RGBColor = RGBColor(150, 150, 150);

/// Lines over a common axis, each with its name in a legend above them, in colours that colour-blind readers tell
/// apart. What is no finite number leaves a gap.
///
/// ```
/// use hooklens::plot::{Line, LinePlot};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("loss.svg");
/// let loss = Line::new("train", vec![(0.0, 4.1), (100.0, 2.0), (200.0, 1.2)]);
/// let held_out = Line::banded("held out", vec![(0.0, 4.2, 4.0, 4.4), (200.0, 1.5, 1.3, 1.7)]);
/// LinePlot::new("step", "loss", [loss, held_out])?.title("induction").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LinePlot {
    title: String,
    x: String,
    y: String,
    /// What stands at 0, 1, ... of an axis that has no numbers.
    labels: Option<Vec<String>>,
    lines: Vec<Line>,
}

/// Where things are, in units.
struct Layout {
    left: f64,
    top: f64,
    /// Labels of the axis below, upright where they don't fit side by side.
    upright: bool,
    below: f64,
    across: Span,
    up: Span,
    x_ticks: Vec<(f64, String)>,
    y_ticks: Vec<(f64, String)>,
    /// Corners of the legend's entries.
    legend: Vec<(f64, f64)>,
    size: (u32, u32),
}

impl LinePlot {
    /// These lines over an axis of this name, their values along one of that name.
    ///
    /// # Errors
    /// [`PlotError::Nothing`], [`PlotError::TooManyLines`], and [`PlotError::TooMany`] for their points.
    pub fn new(
        x: impl Into<String>,
        y: impl Into<String>,
        lines: impl IntoIterator<Item = Line>,
    ) -> Result<Self, PlotError> {
        let (x, lines) = (x.into(), lines.into_iter().collect::<Vec<_>>());
        let places = lines.iter().map(|line| line.points.len()).sum();
        if places == 0 {
            return Err(PlotError::Nothing);
        }
        let most = COLOURS.len() * DASHES.len();
        if lines.len() > most {
            return Err(PlotError::TooManyLines { lines: lines.len(), most, axis: None });
        }
        if places > MOST {
            return Err(PlotError::TooMany { places, most: MOST, axes: vec![x] });
        }
        Ok(Self { title: String::new(), x, y: y.into(), labels: None, lines })
    }

    /// A line through the values of an array of one axis, or, of two, a line a row.
    ///
    /// ```
    /// use hooklens::plot::LinePlot;
    /// use hooklens::{LabelledArray, LabelledAxis};
    /// use ndarray::arr2;
    /// let axes = [LabelledAxis::new("answer", ["Mary", "John"]), LabelledAxis::numbered("layer", 3)];
    /// let logits = LabelledArray::new(axes, arr2(&[[0.1, 2.0, 9.5], [0.2, 1.9, 4.0]]).into_dyn())?;
    /// let svg = LinePlot::of(&logits)?.value("logit").to_svg()?;
    /// assert!(svg.contains("Mary") && svg.contains("layer"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Lines`] for other arrays, saying along which axes to choose; and as [`LinePlot::new`].
    pub fn of(array: &LabelledArray) -> Result<Self, PlotError> {
        let axes = array.axes();
        let ([axis] | [_, axis]) = axes else {
            return Err(PlotError::Lines { axes: axes.iter().map(|axis| axis.name.clone()).collect() });
        };
        let numbers = numbers(&axis.labels);
        let at = |place: usize| numbers.as_ref().map_or(place as f64, |numbers| numbers[place]);
        let columns = axis.labels.len().max(1);
        let values: Vec<f64> = array.values().iter().copied().collect();
        let rows = values.chunks(columns).enumerate();
        let lines = rows.map(|(row, values)| {
            let name =
                if axes.len() == 2 { format!("{} {}", axes[0].name, axes[0].labels[row]) } else { String::new() };
            Line::new(name, values.iter().enumerate().map(|(place, value)| (at(place), *value)))
        });
        let mut plot = Self::new(&axis.name, "value", lines).map_err(|error| match error {
            PlotError::TooManyLines { lines, most, .. } => {
                PlotError::TooManyLines { lines, most, axis: axes.first().map(|axis| axis.name.clone()) }
            }
            other => other,
        })?;
        if numbers.is_none() {
            plot.labels = Some(axis.labels.iter().map(|label| cut(label, LABEL_LETTERS)).collect());
        }
        Ok(plot)
    }

    /// Writes this above the picture.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// What the values are: the name of the axis at the left.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>) -> Self {
        self.y = name.into();
        self
    }

    /// The picture as SVG.
    ///
    /// # Errors
    /// [`PlotError::Draw`].
    pub fn to_svg(&self) -> Result<String, PlotError> {
        let layout = self.layout();
        draw::fine_svg(layout.size, |area| self.draw(&area, &layout))
    }

    /// The picture as PNG, with smooth edges and twice as many dots as [`LinePlot::to_svg`] has units.
    ///
    /// # Errors
    /// [`PlotError::Draw`].
    pub fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        let layout = self.layout();
        draw::fine_png(layout.size, |area| self.draw(&area, &layout))
    }

    /// Writes the picture to a file that appears whole or not at all: SVG, PNG or a page by its ending.
    ///
    /// # Errors
    /// [`PlotError::Kind`], [`PlotError::Draw`], [`PlotError::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        draw::save(path.as_ref(), || self.to_svg(), || self.to_png(), || Ok(page::whole(&self.title, &self.to_svg()?)))
    }

    fn layout(&self) -> Layout {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let across = Span::of(points().map(|place| place.x)).widened(0.03);
        let bands = points().flat_map(|place| place.band).flat_map(|(low, high)| [low, high]);
        let up = Span::of(points().map(|place| place.y).chain(bands)).widened(0.05);
        let whole = points().filter(|place| place.x.is_finite()).all(|place| place.x.fract() == 0.0);
        let widest =
            |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| wide(text, LABELS)).fold(0.0, f64::max);

        let y_ticks = up.ticks(8, false);
        let left = widest(&mut y_ticks.iter().map(|(_, text)| text)) + NAMES + 24.0;
        let (x_ticks, upright, below) = match &self.labels {
            None => (across.ticks(8, whole), false, LABELS),
            Some(labels) => {
                let (pitch, room) = (WIDTH * (across.share(1.0) - across.share(0.0)), widest(&mut labels.iter()));
                let upright = labels.len() > 1 && room + 6.0 > pitch && room > 16.0;
                let step = every(labels.len(), pitch, if upright { LABELS + 1.0 } else { room + 6.0 });
                let ticks = labels.iter().enumerate().step_by(step).map(|(at, label)| (at as f64, label.clone()));
                (ticks.collect(), upright, if upright { room } else { LABELS })
            }
        };

        // Names in the legend follow each other as words do, or, if they are many, stand in columns.
        let title = if self.title.is_empty() { 8.0 } else { TITLE + 20.0 };
        let widths: Vec<f64> =
            self.lines.iter().map(|line| SWATCH + wide(&cut(&line.name, NAME_LETTERS), LABELS) + 16.0).collect();
        let widest = widths.iter().copied().fold(0.0, f64::max);
        let (mut x, mut top, mut legend) = (left, title, Vec::new());
        for width in widths.iter().filter(|_| self.has_legend()) {
            let width = if widths.len() > 4 { widest } else { *width };
            if x > left && x + width > left + WIDTH + 14.0 {
                (x, top) = (left, top + ROW);
            }
            legend.push((x, top));
            x += width;
        }
        let top = if legend.is_empty() { title + 4.0 } else { top + ROW + 8.0 };
        let below = below + NAMES + 26.0;
        let title = wide(&self.title, TITLE) + 24.0;
        let size = ((left + WIDTH + 16.0).max(title).ceil() as u32, (top + HEIGHT + below).ceil() as u32);
        Layout { left, top, upright, below, across, up, x_ticks, y_ticks, legend, size }
    }

    fn has_legend(&self) -> bool {
        self.lines.len() > 1 || self.lines.iter().any(|line| !line.name.is_empty())
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, layout: &Layout) -> Result<(), PlotError> {
        font::ready();
        area.fill(&WHITE).map_err(failed)?;
        if !self.title.is_empty() {
            text(area, &self.title, (12.0, 12.0), TITLE, (HPos::Left, VPos::Top), false)?;
        }
        let (left, top, right, bottom) = (layout.left, layout.top, layout.left + WIDTH, layout.top + HEIGHT);
        let x = |value: f64| left + WIDTH * layout.across.share(value);
        let y = |value: f64| bottom - HEIGHT * layout.up.share(value);
        self.draw_axes(area, layout)?;

        // Bands lie below all lines.
        for (number, line) in self.lines.iter().enumerate() {
            for band in line.bands() {
                let lower = band.iter().map(|(at, low, _)| dot((x(*at), y(*low))));
                let upper = band.iter().rev().map(|(at, _, high)| dot((x(*at), y(*high))));
                let fill = COLOURS[number % COLOURS.len()].mix(0.2).filled();
                area.draw(&Polygon::new(lower.chain(upper).collect::<Vec<_>>(), fill)).map_err(failed)?;
            }
        }
        for (number, line) in self.lines.iter().enumerate() {
            for run in line.runs() {
                let path: Vec<_> = run.iter().map(|place| (x(place.x), y(place.y))).collect();
                stroke(area, &path, number)?;
                if line.points.len() <= MARKED || run.len() == 1 {
                    path.iter().try_for_each(|place| mark(area, *place, number))?;
                }
            }
        }
        // A path, since SVG's rectangles get no width of line.
        let frame = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)].map(dot);
        area.draw(&PathElement::new(frame, BLACK_INK.stroke_width(FINE))).map_err(failed)?;

        for ((number, line), (x, y)) in self.lines.iter().enumerate().zip(&layout.legend) {
            let middle = y + ROW / 2.0;
            stroke(area, &[(*x, middle), (x + SWATCH - 8.0, middle)], number)?;
            let name = cut(&line.name, NAME_LETTERS);
            text(area, &name, (x + SWATCH - 2.0, middle), LABELS, (HPos::Left, VPos::Center), false)?;
        }
        area.present().map_err(failed)
    }

    /// Ticks, the lines at them, and the axes' names.
    fn draw_axes<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, layout: &Layout) -> Result<(), PlotError> {
        let (left, right, bottom) = (layout.left, layout.left + WIDTH, layout.top + HEIGHT);
        let rule = |from: (f64, f64), to: (f64, f64), ink: RGBColor| {
            area.draw(&PathElement::new([dot(from), dot(to)], ink.stroke_width(FINE))).map_err(failed)
        };
        for (value, label) in &layout.y_ticks {
            let y = bottom - HEIGHT * layout.up.share(*value);
            rule((left, y), (right, y), if *value == 0.0 { ZERO } else { GRID })?;
            text(area, label, (left - 7.0, y), LABELS, (HPos::Right, VPos::Center), false)?;
        }
        for (value, label) in &layout.x_ticks {
            let x = left + WIDTH * layout.across.share(*value);
            rule((x, bottom), (x, bottom + 4.0), BLACK_INK)?;
            let anchor = if layout.upright { (HPos::Right, VPos::Center) } else { (HPos::Center, VPos::Top) };
            text(area, label, (x, bottom + 8.0), LABELS, anchor, layout.upright)?;
        }
        let under = bottom + layout.below - NAMES - 8.0;
        text(area, &self.x, ((left + right) / 2.0, under), NAMES, (HPos::Center, VPos::Top), false)?;
        let beside = (13.0, layout.top + HEIGHT / 2.0);
        text(area, &self.y, beside, NAMES, (HPos::Center, VPos::Center), true)
    }
}

/// The labels as numbers, if all of them are.
fn numbers(labels: &[String]) -> Option<Vec<f64>> {
    labels.iter().map(|label| label.parse().ok().filter(|number: &f64| number.is_finite())).collect()
}

/// About how wide a text is: the drawing library makes letters smaller than their size says.
fn wide(text: &str, size: f64) -> f64 {
    font::width(text, size) * 0.85
}

/// A text on one line, of at most so many letters.
fn cut(text: &str, most: usize) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    if text.chars().count() <= most { letters.collect() } else { letters.take(most - 1).chain(['…']).collect() }
}

/// A place in units as one in dots.
fn dot((x, y): (f64, f64)) -> (i32, i32) {
    ((x * f64::from(FINE)).round() as i32, (y * f64::from(FINE)).round() as i32)
}

/// The path of a line, as it is drawn for the line of this number.
fn stroke<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    path: &[(f64, f64)],
    number: usize,
) -> Result<(), PlotError> {
    let style = COLOURS[number % COLOURS.len()].stroke_width(2 * FINE);
    let pieces = match DASHES[number / COLOURS.len() % DASHES.len()] {
        None => vec![path.to_vec()],
        Some((on, off)) => dashes(path, on, off),
    };
    for piece in pieces {
        let piece: Vec<_> = piece.into_iter().map(dot).collect();
        area.draw(&PathElement::new(piece, style)).map_err(failed)?;
    }
    Ok(())
}

/// A point of the line of this number.
fn mark<B: DrawingBackend>(area: &DrawingArea<B, Shift>, at: (f64, f64), number: usize) -> Result<(), PlotError> {
    let fill = COLOURS[number % COLOURS.len()].filled();
    area.draw(&Circle::new(dot(at), 5 * FINE / 2, fill)).map_err(failed)
}

/// A text whose place and size are in units.
fn text<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    at: (f64, f64),
    size: f64,
    (across, down): (HPos, VPos),
    upright: bool,
) -> Result<(), PlotError> {
    write(area, text, dot(at), size * f64::from(FINE), across, down, upright, &BLACK_INK)
}
