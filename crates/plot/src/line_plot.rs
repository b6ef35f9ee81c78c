//! Line plots.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::draw::{FINE, failed};
use super::frame::{Frame, FrameAxis, HEIGHT, MOST, SWATCH, Ticks, WIDTH, framed};
use super::line::{Line, dashes};
use super::pen::{COLOURS, color, cut, dot, path, polygon};
use super::ticks::Span;
use crate::error::PlotError;
use hooklens_analysis::labeled::{LabeledArray, LabeledAxis, check_same_axes};

/// Maximum number of characters of an axis label.
const LABEL_LETTERS: usize = 16;
/// Maximum number of points in a line whose points are marked.
const MARKED: usize = 40;
/// Lengths of dashes and gaps, in units. The first seven lines are solid, the next seven dashed, the last seven dotted.
const DASHES: [Option<(f64, f64)>; 3] = [None, Some((7.0, 4.0)), Some((2.0, 3.0))];

/// Lines over a common axis, named in a legend above them, in colors suitable for color-blind readers. Values that are
/// not finite leave gaps.
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
    /// Labels of the positions 0, 1, ... on the x axis; `None` if the axis is numeric.
    labels: Option<Vec<String>>,
    /// Axes of the array that is shown; `None` for lines given one by one.
    axes: Option<Vec<LabeledAxis>>,
    lines: Vec<Line>,
}

impl LinePlot {
    /// Creates a plot of these lines, with names for the x axis and the value axis.
    ///
    /// # Errors
    /// [`PlotError::Nothing`] without points; [`PlotError::TooManyLines`] for more than 21 lines;
    /// [`PlotError::TooMany`] for more than 250,000 points.
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
        Ok(Self { title: String::new(), x, y: y.into(), labels: None, axes: None, lines })
    }

    /// Creates a plot of a one-dimensional array as one line, or of a two-dimensional array as one line per row.
    ///
    /// ```
    /// use hooklens::plot::{LinePlot, Picture};
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// use ndarray::arr2;
    /// let axes = [LabeledAxis::new("answer", ["Mary", "John"]), LabeledAxis::numbered("layer", 3)];
    /// let logits = LabeledArray::new(axes, arr2(&[[0.1, 2.0, 9.5], [0.2, 1.9, 4.0]]).into_dyn())?;
    /// let svg = LinePlot::of(&logits)?.value("logit").to_svg()?;
    /// assert!(svg.contains("Mary") && svg.contains("layer"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Lines`] for an array without axes or with more than two; otherwise, same as [`LinePlot::new`].
    pub fn of(array: &LabeledArray) -> Result<Self, PlotError> {
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
        plot.axes = Some(axes.to_vec());
        if numbers.is_none() {
            plot.labels = Some(axis.labels.iter().map(|label| cut(label, LABEL_LETTERS)).collect());
        }
        Ok(plot)
    }

    /// Sets the name of the value axis.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>) -> Self {
        self.y = name.into();
        self
    }

    /// Sets bands around the lines, such as the intervals of
    /// [`Statistics`](hooklens_analysis::statistics::Statistics). `low` and `high` are the bounds of each value: arrays
    /// with the axes of the array that is shown, or with one axis for the points of lines given one by one.
    ///
    /// ```
    /// use hooklens::plot::{LinePlot, Picture};
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let by_layer = |values: [f64; 3]| LabeledArray::from_values([LabeledAxis::numbered("layer", 3)], values);
    /// let (effect, low, high) = (by_layer([0.1, 2.0, 4.0])?, by_layer([-0.2, 1.5, 3.0])?, by_layer([0.4, 2.5, 5.0])?);
    /// let svg = LinePlot::of(&effect)?.intervals(&low, &high)?.value("effect (logits)").to_svg()?;
    /// assert!(svg.contains("polygon"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Intervals`] if the bounds have other axes or labels than the array that is shown,
    /// [`PlotError::Lengths`] if the number of bounds differs from the number of points.
    pub fn intervals(mut self, low: &LabeledArray, high: &LabeledArray) -> Result<Self, PlotError> {
        let points: usize = self.lines.iter().map(|line| line.points.len()).sum();
        for bound in [low, high] {
            match &self.axes {
                Some(axes) => check_same_axes(axes, bound.axes()).map_err(PlotError::Intervals)?,
                None => {
                    let (given, expected) = (bound.values().len(), points);
                    if given != expected || bound.axes().len() != 1 {
                        let what = "bounds with one axis";
                        return Err(PlotError::Lengths { what, given, of: "points", expected });
                    }
                }
            }
        }
        let bounds = low.values().iter().zip(high.values());
        for (place, (low, high)) in self.lines.iter_mut().flat_map(|line| &mut line.points).zip(bounds) {
            let is_finite = low.is_finite() && high.is_finite();
            place.band = is_finite.then(|| (low.min(*high), low.max(*high)));
        }
        Ok(self)
    }

    fn frame(&self) -> Frame {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bands = points().flat_map(|place| place.band).flat_map(|(low, high)| [low, high]);
        let whole = points().filter(|place| place.x.is_finite()).all(|place| place.x.fract() == 0.0);
        // Labeled positions are at 0, 1, ...
        let mut strengths = vec![0.0f64; self.labels.as_ref().map_or(0, Vec::len)];
        for (at, value) in points().map(|place| (place.x as usize, place.y.abs())) {
            if let Some(strength) = strengths.get_mut(at) {
                *strength = strength.max(value);
            }
        }
        let x = FrameAxis {
            name: &self.x,
            span: Span::of(points().map(|place| place.x)).widened(0.03),
            ticks: self.labels.as_deref().map_or(Ticks::Numbers { whole }, |labels| Ticks::Labels(labels, &strengths)),
            ruled: false,
        };
        let y = FrameAxis {
            name: &self.y,
            span: Span::of(points().map(|place| place.y).chain(bands)).widened(0.05),
            ticks: Ticks::Numbers { whole: false },
            ruled: true,
        };
        let legend = self.lines.len() > 1 || self.lines.iter().any(|line| !line.name.is_empty());
        let names: Vec<&str> = self.lines.iter().filter(|_| legend).map(|line| line.name.as_str()).collect();
        Frame::new(&self.title, (WIDTH, HEIGHT), &x, &y, &names)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, frame: &Frame) -> Result<(), PlotError> {
        frame.begin(area)?;
        // Bands are drawn below all lines.
        for (number, line) in self.lines.iter().enumerate() {
            for band in line.bands() {
                let lower = band.iter().map(|(at, low, _)| (frame.x(*at), frame.y(*low)));
                let upper = band.iter().rev().map(|(at, _, high)| (frame.x(*at), frame.y(*high)));
                polygon(area, lower.chain(upper), color(number).mix(0.2))?;
            }
        }
        for (number, line) in self.lines.iter().enumerate() {
            for run in line.runs() {
                let path: Vec<_> = run.iter().map(|place| (frame.x(place.x), frame.y(place.y))).collect();
                stroke(area, &path, number)?;
                if line.points.len() <= MARKED || run.len() == 1 {
                    path.iter().try_for_each(|place| mark(area, *place, number))?;
                }
            }
        }
        frame.end(area, |number, (x, y)| stroke(area, &[(x, y), (x + SWATCH, y)], number))
    }
}

framed!(LinePlot);

/// The labels as numbers, if all of them are numeric.
fn numbers(labels: &[String]) -> Option<Vec<f64>> {
    labels.iter().map(|label| label.parse().ok().filter(|number: &f64| number.is_finite())).collect()
}

/// Draws a path in the style of the line with this index.
fn stroke<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    places: &[(f64, f64)],
    number: usize,
) -> Result<(), PlotError> {
    let pieces = match DASHES[number / COLOURS.len() % DASHES.len()] {
        None => vec![places.to_vec()],
        Some((on, off)) => dashes(places, on, off),
    };
    pieces.iter().try_for_each(|piece| path(area, piece, color(number), 2 * FINE))
}

/// Draws a point of the line with this index.
fn mark<B: DrawingBackend>(area: &DrawingArea<B, Shift>, at: (f64, f64), number: usize) -> Result<(), PlotError> {
    area.draw(&Circle::new(dot(at), 5 * FINE / 2, color(number).filled())).map_err(failed)
}
