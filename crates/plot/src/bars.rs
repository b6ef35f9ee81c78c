//! Bar charts.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::draw::{BLACK_INK, FINE};
use super::frame::{Frame, FrameAxis, HEIGHT, Ticks, WIDTH, framed};
use super::pen::{color, cut, path, polygon};
use super::ticks::Span;
use crate::error::PlotError;
use hooklens_analysis::labeled::LabeledArray;

/// Maximum number of bars in a picture.
const MOST: usize = 500;
/// Maximum number of characters of a label below a bar.
const LETTERS_BELOW: usize = 16;
/// Maximum number of characters of a label beside a bar.
const LETTERS_BESIDE: usize = 32;
/// Preferred space per bar, in units, for vertical and for horizontal bars.
const PITCH: (f64, f64) = (13.0, 17.0);
/// Maximum space for all bars, in units, for vertical and for horizontal bars.
const MOST_ROOM: (f64, f64) = (900.0, 1600.0);

/// A bar chart of labeled numbers, such as each head's contribution to a logit or the accuracy for each ablation, with
/// optional error bars.
///
/// ```
/// use hooklens::plot::Bars;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("heads.svg");
/// let heads = [("L2H1", 3.1), ("L1H0", 0.4), ("L3H2", -0.9)];
/// Bars::new("head", "logit difference", heads)?.errors([0.3, 0.1, 0.2])?.horizontal().title("direct").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    title: String,
    name: String,
    value: String,
    bars: Vec<(String, f64)>,
    /// One error per bar; empty if there are no error bars.
    errors: Vec<f64>,
    horizontal: bool,
}

impl Bars {
    /// Creates a bar chart from labels and values. `name` is the name of the label axis, and `value` is the name of the
    /// value axis.
    ///
    /// ```
    /// use hooklens::plot::Bars;
    /// let message = Bars::new("head", "effect", [("L0H0", 1.0), ("L0H1", f64::INFINITY)]).unwrap_err().to_string();
    /// assert_eq!(message, "`L0H1` is inf; only finite numbers can be drawn, so leave it out");
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Nothing`] without bars; [`PlotError::TooMany`] for more than 500 bars; [`PlotError::NotFinite`] for
    /// a value that is not finite.
    pub fn new(
        name: impl Into<String>,
        value: impl Into<String>,
        bars: impl IntoIterator<Item = (impl Into<String>, impl Into<f64>)>,
    ) -> Result<Self, PlotError> {
        let name = name.into();
        let bars: Vec<(String, f64)> = bars.into_iter().map(|(label, value)| (label.into(), value.into())).collect();
        if bars.is_empty() {
            return Err(PlotError::Nothing);
        }
        if bars.len() > MOST {
            return Err(PlotError::TooMany { places: bars.len(), most: MOST, axes: vec![name] });
        }
        bars.iter().try_for_each(|(label, value)| PlotError::finite(*value, || format!("`{label}`")))?;
        Ok(Self { title: String::new(), name, value: value.into(), bars, errors: Vec::new(), horizontal: false })
    }

    /// Creates a bar for each value of a one-dimensional array.
    ///
    /// ```
    /// use hooklens::plot::{Bars, Picture};
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let shares = LabeledArray::from_values([LabeledAxis::new("answer", ["Mary", "John"])], [0.9, 0.1])?;
    /// let svg = Bars::of(&shares)?.value("probability").to_svg()?;
    /// assert!(svg.contains("Mary") && svg.contains("answer") && svg.contains("probability"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Bars`] for an array without exactly one axis; otherwise, same as [`Bars::new`].
    pub fn of(array: &LabeledArray) -> Result<Self, PlotError> {
        let [axis] = array.axes() else {
            return Err(PlotError::Bars { axes: array.axes().iter().map(|axis| axis.name.clone()).collect() });
        };
        Self::new(&axis.name, "value", axis.labels.iter().zip(array.values().iter().copied()))
    }

    /// Sets the name of the value axis.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>) -> Self {
        self.value = name.into();
        self
    }

    /// Adds error bars. Each error, such as a standard error, is half the length of its error bar.
    ///
    /// # Errors
    /// [`PlotError::Lengths`] for the wrong number of errors; [`PlotError::NotFinite`] or [`PlotError::NegativeError`]
    /// for an error that is not finite or is negative.
    pub fn errors(mut self, errors: impl IntoIterator<Item = impl Into<f64>>) -> Result<Self, PlotError> {
        let errors: Vec<f64> = errors.into_iter().map(Into::into).collect();
        let (given, expected) = (errors.len(), self.bars.len());
        if given != expected {
            return Err(PlotError::Lengths { what: "errors", given, of: "bars", expected });
        }
        for ((label, _), error) in self.bars.iter().zip(&errors) {
            PlotError::finite(*error, || format!("the error of `{label}`"))?;
            if *error < 0.0 {
                return Err(PlotError::NegativeError { label: label.clone(), error: *error });
            }
        }
        self.errors = errors;
        Ok(self)
    }

    /// Draws horizontal bars with the first at the top, for many bars or long labels.
    #[must_use]
    pub fn horizontal(mut self) -> Self {
        self.horizontal = true;
        self
    }

    fn frame(&self) -> Frame {
        let count = self.bars.len() as f64;
        let ends = |number: usize| {
            let (value, error) = (self.bars[number].1, self.errors.get(number).copied().unwrap_or_default());
            [value - error, value + error]
        };
        let mut along = Span::of((0..self.bars.len()).flat_map(ends).chain([0.0])).widened(0.05);
        // The axis starts at zero if no bar is on the other side.
        let crossed = |sign: f64| (0..self.bars.len()).flat_map(ends).any(|end| end * sign > 0.0);
        if !crossed(-1.0) {
            along.least = 0.0;
        }
        if !crossed(1.0) && crossed(-1.0) {
            along.most = 0.0;
        }
        let letters = if self.horizontal { LETTERS_BESIDE } else { LETTERS_BELOW };
        let labels: Vec<String> = self.bars.iter().map(|(label, _)| cut(label, letters)).collect();
        let values = FrameAxis { name: &self.value, span: along, ticks: Ticks::Numbers { whole: false }, ruled: true };
        let strengths: Vec<f64> = self.bars.iter().map(|(_, value)| value.abs()).collect();
        let ticks = Ticks::Labels(&labels, &strengths);
        let of_labels = |span| FrameAxis { name: &self.name, span, ticks, ruled: false };
        if self.horizontal {
            let beside = of_labels(Span { least: 0.4 - count, most: 0.6 });
            let height = (count * PITCH.1).clamp(60.0, MOST_ROOM.1);
            return Frame::new(&self.title, (WIDTH, height), &values, &beside, &[]);
        }
        let below = of_labels(Span { least: -0.6, most: count - 0.4 });
        let width = (count * PITCH.0).clamp(WIDTH, MOST_ROOM.0);
        Frame::new(&self.title, (width, HEIGHT), &below, &values, &[])
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, frame: &Frame) -> Result<(), PlotError> {
        frame.begin(area)?;
        // Maps a position along the labels and a value to a position in the picture.
        let place = |label: f64, number: f64| match self.horizontal {
            true => (frame.x(number), frame.y(-label)),
            false => (frame.x(label), frame.y(number)),
        };
        for (number, (_, value)) in self.bars.iter().enumerate() {
            let at = number as f64;
            let corners =
                [place(at - 0.4, 0.0), place(at - 0.4, *value), place(at + 0.4, *value), place(at + 0.4, 0.0)];
            polygon(area, corners, color(0).mix(1.0))?;
            let Some(error) = self.errors.get(number).copied() else { continue };
            let (low, high) = (value - error, value + error);
            path(area, &[place(at, low), place(at, high)], BLACK_INK, FINE)?;
            for end in [low, high] {
                path(area, &[place(at - 0.15, end), place(at + 0.15, end)], BLACK_INK, FINE)?;
            }
        }
        let [from, to] = [place(-0.6, 0.0), place(self.bars.len() as f64 - 0.4, 0.0)];
        path(area, &[from, to], BLACK_INK, FINE)?;
        frame.end(area, |_, _| Ok(()))
    }
}

framed!(Bars);
