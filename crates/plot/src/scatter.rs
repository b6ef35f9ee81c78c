//! Scatter plots.

mod places;

use std::collections::HashMap;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::draw::LABELS;
use super::frame::{Frame, FrameAxis, MOST, SWATCH, Ticks, WIDTH, framed};
use super::pen::{COLOURS, color, cut, dot, polygon, text};
use super::ticks::Span;
use crate::error::PlotError;
use places::{Obstacles, free};

/// Height of the plot area in units.
const HEIGHT: f64 = 300.0;
/// Marker shapes: one for the first seven groups, one for the next seven, and one for the last seven.
const SHAPES: [Shape; 3] = [Shape::Circle, Shape::Square, Shape::Triangle];
/// Maximum number of points in a plot with labels.
const MOST_LABELLED: usize = 2_000;
/// Maximum number of characters in a label.
const LABEL_LETTERS: usize = 24;

/// The marker of a point.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Circle,
    Square,
    Triangle,
}

/// A scatter plot of pairs of numbers, such as two principal components, or a logit before and after a change. Groups
/// of points differ by color and are named in a legend; points may have labels.
///
/// ```
/// use hooklens::plot::Scatter;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pca.svg");
/// let points = [(0.1, 1.2), (0.3, 1.0), (-2.0, 0.1)];
/// let picture = Scatter::new("PC 1", "PC 2", points)?;
/// picture.groups(["names", "names", "places"])?.labels(["Mary", "John", "store"])?.title("embedding").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Scatter {
    title: String,
    x: String,
    y: String,
    points: Vec<(f64, f64)>,
    /// Names of the groups.
    groups: Vec<String>,
    /// Index of each point's group.
    group_of: Vec<usize>,
    /// One label per point; empty if there are no labels.
    labels: Vec<String>,
}

impl Scatter {
    /// Creates a plot of `(x, y)` points, with names for the axes.
    ///
    /// ```
    /// use hooklens::plot::Scatter;
    /// let message = Scatter::new("x", "y", [(0.0, 1.0), (1.0, f64::NAN)]).unwrap_err().to_string();
    /// assert_eq!(message, "y of point 1, counted from 0, is NaN; only finite numbers can be drawn, so leave it out");
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Nothing`] without points; [`PlotError::TooMany`] for more than 250,000 points;
    /// [`PlotError::NotFinite`] for a coordinate that is not finite.
    pub fn new(
        x: impl Into<String>,
        y: impl Into<String>,
        points: impl IntoIterator<Item = (impl Into<f64>, impl Into<f64>)>,
    ) -> Result<Self, PlotError> {
        let (x, y) = (x.into(), y.into());
        let points: Vec<(f64, f64)> = points.into_iter().map(|(x, y)| (x.into(), y.into())).collect();
        if points.is_empty() {
            return Err(PlotError::Nothing);
        }
        if points.len() > MOST {
            return Err(PlotError::TooMany { places: points.len(), most: MOST, axes: vec![x] });
        }
        for (number, point) in points.iter().enumerate() {
            let of = |axis| format!("{axis} of point {number}, counted from 0,");
            PlotError::finite(point.0, || of("x"))?;
            PlotError::finite(point.1, || of("y"))?;
        }
        let group_of = vec![0; points.len()];
        Ok(Self { title: String::new(), x, y, points, groups: Vec::new(), group_of, labels: Vec::new() })
    }

    /// Colors points by group, given one group name per point. The legend lists groups in order of first appearance.
    ///
    /// # Errors
    /// [`PlotError::Lengths`] for the wrong number of groups; [`PlotError::TooManySeries`] for more than 21 distinct
    /// groups.
    pub fn groups(mut self, groups: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, PlotError> {
        let (mut names, mut group_of) = (Vec::<String>::new(), Vec::new());
        let mut numbers: HashMap<String, usize> = HashMap::new();
        for group in groups {
            let group = group.into();
            group_of.push(*numbers.entry(group).or_insert_with_key(|group| {
                names.push(group.clone());
                names.len() - 1
            }));
        }
        self.fits("groups", group_of.len())?;
        let most = COLOURS.len() * SHAPES.len();
        if names.len() > most {
            return Err(PlotError::TooManySeries { what: "groups", given: names.len(), most });
        }
        (self.groups, self.group_of) = (names, group_of);
        Ok(self)
    }

    /// Adds a label to each point. An empty text adds no label. Labels that would cover another label, a point or the
    /// edge are omitted, beginning with the labels of points near the middle, and the picture says how many labels fit.
    ///
    /// # Errors
    /// [`PlotError::Lengths`] for the wrong number of labels; [`PlotError::TooMany`] for more than 2,000 labels.
    pub fn labels(mut self, labels: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, PlotError> {
        let labels: Vec<String> = labels.into_iter().map(|label| cut(&label.into(), LABEL_LETTERS)).collect();
        self.fits("labels", labels.len())?;
        let places = labels.iter().filter(|label| !label.is_empty()).count();
        if places > MOST_LABELLED {
            return Err(PlotError::TooMany { places, most: MOST_LABELLED, axes: vec![self.x] });
        }
        self.labels = labels;
        Ok(self)
    }

    fn fits(&self, what: &'static str, given: usize) -> Result<(), PlotError> {
        let expected = self.points.len();
        if given == expected { Ok(()) } else { Err(PlotError::Lengths { what, given, of: "points", expected }) }
    }

    fn frame(&self) -> Frame {
        let axis = |name, number: fn(&(f64, f64)) -> f64| {
            let whole = self.points.iter().all(|point| number(point).fract() == 0.0);
            let span = Span::of(self.points.iter().map(number)).widened(0.05);
            FrameAxis { name, span, ticks: Ticks::Numbers { whole }, ruled: true }
        };
        let (x, y) = (axis(&self.x, |point| point.0), axis(&self.y, |point| point.1));
        let names: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        let frame = Frame::new(&self.title, (WIDTH, HEIGHT), &x, &y, &names);
        let (places, labels) = (self.labels_on(&frame), self.labels.iter().filter(|label| !label.is_empty()).count());
        match places.iter().flatten().count() {
            shown if shown < labels => frame.with_note(format!("{shown} of {labels} labels fit")),
            _ => frame,
        }
    }

    /// The places of the points.
    fn places(&self, frame: &Frame) -> Vec<(f64, f64)> {
        self.points.iter().map(|(x, y)| (frame.x(*x), frame.y(*y))).collect()
    }

    /// The places of the labels that fit.
    fn labels_on(&self, frame: &Frame) -> Vec<Option<(f64, f64)>> {
        free(&self.labels, &Obstacles { edges: frame.edges(), points: &self.places(frame), radius: self.radius() })
    }

    /// Radius of the markers.
    fn radius(&self) -> f64 {
        match self.points.len() {
            0..=300 => 3.0,
            301..=3_000 => 2.0,
            _ => 1.25,
        }
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, frame: &Frame) -> Result<(), PlotError> {
        frame.begin(area)?;
        for (place, group) in self.places(frame).iter().zip(&self.group_of) {
            mark(area, *place, *group, self.radius())?;
        }
        for (label, (x, y)) in self.labels.iter().zip(self.labels_on(frame)).filter_map(|(l, at)| Some((l, at?))) {
            text(area, label, (x, y), LABELS, (HPos::Left, VPos::Center), false)?;
        }
        frame.end(area, |group, (x, y)| mark(area, (x + SWATCH / 2.0, y), group, 4.0))
    }
}

framed!(Scatter);

/// Draws the marker of a point in the group with this number, with about this radius.
fn mark<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    (x, y): (f64, f64),
    group: usize,
    radius: f64,
) -> Result<(), PlotError> {
    let ink = color(group).mix(0.75);
    match SHAPES[group / COLOURS.len() % SHAPES.len()] {
        Shape::Circle => {
            let radius = dot((radius, 0.0)).0;
            area.draw(&Circle::new(dot((x, y)), radius, ink.filled())).map_err(super::draw::failed)
        }
        Shape::Square => {
            let half = radius * 0.9;
            polygon(area, [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)], ink)
        }
        Shape::Triangle => {
            let half = radius * 1.15;
            polygon(area, [(x, y - half), (x + half, y + half * 0.8), (x - half, y + half * 0.8)], ink)
        }
    }
}
