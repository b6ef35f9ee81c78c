//! Bar charts.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::draw::{BLACK_INK, FINE};
use super::frame::{Frame, FrameAxis, HEIGHT, Ticks, WIDTH, framed};
use super::pen::{color, cut, path, polygon};
use super::ticks::Span;
use crate::error::PlotError;
use hooklens_analysis::labeled::LabeledArray;

/// Bars a picture has at most.
const MOST: usize = 500;
/// Letters of a label below a bar, and of one beside it, at most.
const LETTERS_BELOW: usize = 16;
const LETTERS_BESIDE: usize = 32;
/// Room for a bar, in units, while there is enough; and of all together at most.
const PITCH: (f64, f64) = (13.0, 17.0);
const MOST_ROOM: (f64, f64) = (900.0, 1600.0);

/// A bar chart of labeled numbers: what each head adds to a logit, the accuracy under each ablation. With or without
/// error bars.
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
    /// One for each bar, or none at all.
    errors: Vec<f64>,
    horizontal: bool,
}

impl Bars {
    /// Labels with their numbers: what the labels are of, and what the numbers are.
    ///
    /// ```
    /// use hooklens::plot::Bars;
    /// let told = Bars::new("head", "effect", [("L0H0", 1.0), ("L0H1", f64::INFINITY)]).unwrap_err().to_string();
    /// assert_eq!(told, "`L0H1` is inf; only finite numbers can be drawn, so leave it out");
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Nothing`] without a bar, [`PlotError::TooMany`] beyond 500, [`PlotError::NotFinite`].
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

    /// A bar for each value of an array of one axis.
    ///
    /// ```
    /// use hooklens::plot::Bars;
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let shares = LabeledArray::from_values([LabeledAxis::new("answer", ["Mary", "John"])], [0.9, 0.1])?;
    /// let svg = Bars::of(&shares)?.value("probability").to_svg()?;
    /// assert!(svg.contains("Mary") && svg.contains("answer") && svg.contains("probability"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Bars`] for other arrays, saying along which axes to choose; and as [`Bars::new`].
    pub fn of(array: &LabeledArray) -> Result<Self, PlotError> {
        let [axis] = array.axes() else {
            return Err(PlotError::Bars { axes: array.axes().iter().map(|axis| axis.name.clone()).collect() });
        };
        Self::new(&axis.name, "value", axis.labels.iter().zip(array.values().iter().copied()))
    }

    /// Name of the value axis.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>) -> Self {
        self.value = name.into();
        self
    }

    /// Error bars: half the width of each, such as a standard error.
    ///
    /// # Errors
    /// [`PlotError::Lengths`] for more or fewer than bars, [`PlotError::NotFinite`], and [`PlotError::NegativeError`].
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

    /// Lays the bars on their sides, the first above: for many, or for long labels.
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
        // Bars stand on the frame where none goes to the other side of zero.
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
        let of_labels = |span| FrameAxis { name: &self.name, span, ticks: Ticks::Labels(&labels), ruled: false };
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
        // From along the labels and along the numbers to a place.
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
