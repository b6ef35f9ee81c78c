//! Heatmaps.

mod cell_titles;
mod layout;

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::color::{Colormap, Scale, faded, is_dark};
use super::color_bar::ColorBar;
use super::draw::{self, BLACK_INK, FINE, LABELS, NAMES, TITLE, failed};
use super::font;
use super::page;
use super::pen::{path, polygon, text, text_in};
use crate::error::PlotError;
use crate::picture::Picture;
use hooklens_analysis::labeled::{LabeledArray, LabeledAxis, check_same_axes};
use layout::Layout;

/// Maximum number of cells in a picture.
const MOST: usize = 250_000;

/// A heatmap with the array's second-to-last axis as rows and its last axis as columns. An array with three axes is
/// drawn as one panel per index of its first axis, and an array with four axes as a grid of panels, with its first axis
/// downward and its second across. All panels share one color scale: red above zero and blue below it or, without
/// negative values, white to blue. In an SVG, hovering over a cell shows its labels and its value.
///
/// ```
/// use hooklens::plot::{Heatmap, Picture};
/// use hooklens::{LabeledArray, LabeledAxis};
/// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::new("pos", ["0: <bos>", "1: king", "2: drum"])];
/// let effects = LabeledArray::from_values(axes, [0.0, 0.1, 0.9, 0.0, -0.2, 1.0])?;
/// let svg = Heatmap::of(&effects)?.title("resid_pre, n = 20").value("effect (logits)").to_svg()?;
/// assert!(svg.contains("<title>layer 1, pos 1: king\neffect (logits): -0.2</title>"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Heatmap<'a> {
    array: &'a LabeledArray,
    title: String,
    value: String,
    range: Option<(f64, f64)>,
    colormap: Option<Colormap>,
    texts: Option<Vec<String>>,
    /// Lower and upper bounds of the interval of each value, in row order.
    intervals: Option<Vec<(f64, f64)>>,
}

/// A part of the array that is drawn as one block of cells.
struct Panel {
    name: String,
    /// Index of the panel's matrix in the array.
    matrix: usize,
    columns: Range<usize>,
    /// Column and row in the grid of panels.
    place: (usize, usize),
    /// Whether the labels of rows and of columns are drawn.
    labeled: (bool, bool),
}

/// A cell of the picture.
struct Cell {
    /// Left, top, right and bottom.
    corners: [f64; 4],
    /// Index of the value in the array.
    index: usize,
    value: f64,
    interval: Option<(f64, f64)>,
}

impl Cell {
    fn color(&self, scale: Scale) -> RGBColor {
        let color = scale.color(self.value);
        let is_faded = self.interval.is_some_and(|(low, high)| low <= 0.0 && high >= 0.0) && !self.value.is_nan();
        if is_faded { faded(color) } else { color }
    }
}

impl<'a> Heatmap<'a> {
    /// Creates a heatmap of an array with two to four axes.
    ///
    /// # Errors
    /// [`PlotError::Axes`] for any other number of axes; [`PlotError::Nothing`] for an empty array;
    /// [`PlotError::TooMany`] for more than 250,000 values.
    pub fn of(array: &'a LabeledArray) -> Result<Self, PlotError> {
        let names = || array.axes().iter().map(|axis| axis.name.clone()).collect();
        if !(2..=4).contains(&array.axes().len()) {
            return Err(PlotError::Axes { axes: names() });
        }
        if array.values().is_empty() {
            return Err(PlotError::Nothing);
        }
        let places = array.values().len();
        if places > MOST {
            return Err(PlotError::TooMany { places, most: MOST, axes: names() });
        }
        let (title, value) = (String::new(), String::new());
        Ok(Self { array, title, value, range: None, colormap: None, texts: None, intervals: None })
    }

    /// Sets the title, drawn above the picture.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the name of the values, with their unit, such as `effect (logits)`. It is written beside the color bar.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>) -> Self {
        self.value = name.into();
        self
    }

    /// Sets the values at the ends of the color scale, so that pictures can be compared. Values beyond an end get the
    /// color of that end, which the color bar then marks with `≤` or `≥`. Default: the range of all values, with zero
    /// in the middle or at the lower end.
    ///
    /// # Errors
    /// [`PlotError::Range`] if `least` is not below `most`, or if either value is not finite.
    pub fn range(mut self, least: f64, most: f64) -> Result<Self, PlotError> {
        if !(least < most && least.is_finite() && most.is_finite()) {
            return Err(PlotError::Range { least, most });
        }
        self.range = Some((least, most));
        Ok(self)
    }

    /// Sets the colors.
    #[must_use]
    pub fn colormap(mut self, colormap: Colormap) -> Self {
        self.colormap = Some(colormap);
        self
    }

    /// Sets the text of each cell, in row order. Texts too long for a cell are truncated. A picture with more columns
    /// than fit side by side is wrapped.
    #[must_use]
    pub fn texts(mut self, texts: Vec<String>) -> Self {
        self.texts = Some(texts);
        self
    }

    /// Sets the interval of each value, such as the intervals of
    /// [`Statistics`](hooklens_analysis::statistics::Statistics). Cells whose interval contains zero are faded, and the
    /// title of each cell in an SVG shows its interval.
    ///
    /// ```
    /// use hooklens::plot::{Heatmap, Picture};
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let axes = || [LabeledAxis::numbered("layer", 1), LabeledAxis::numbered("head", 2)];
    /// let [effects, low, high] = [[1.0, 0.9], [0.8, -0.1], [1.2, 1.9]].map(|row| LabeledArray::from_values(axes(), row));
    /// let (effects, low, high) = (effects?, low?, high?);
    /// let svg = Heatmap::of(&effects)?.intervals(&low, &high)?.to_svg()?;
    /// assert!(svg.contains("<title>layer 0, head 1\nvalue: 0.9\ninterval: -0.1 to 1.9</title>"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PlotError::Intervals`] if the bounds have other axes or labels than the values.
    pub fn intervals(mut self, low: &LabeledArray, high: &LabeledArray) -> Result<Self, PlotError> {
        for bound in [low, high] {
            check_same_axes(self.array.axes(), bound.axes()).map_err(PlotError::Intervals)?;
        }
        self.intervals = Some(low.values().iter().copied().zip(high.values().iter().copied()).collect());
        Ok(self)
    }

    /// Saves the picture to a file atomically, as SVG, PNG or HTML depending on the file's extension.
    ///
    /// # Errors
    /// [`PlotError::Kind`] for any other extension; [`PlotError::Draw`] if drawing fails; [`PlotError::Write`] if the
    /// file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        let page = || Ok(page::of_picture(&self.title, &self.to_svg()?));
        draw::save(path.as_ref(), || self.to_svg(), || self.to_png(2), page)
    }

    /// Numbers of rows and columns of a matrix.
    fn shape(&self) -> (usize, usize) {
        (self.axis(2).labels.len(), self.axis(1).labels.len())
    }

    /// An axis, counted from the last: 1 for columns, 2 for rows.
    fn axis(&self, from_last: usize) -> &LabeledAxis {
        let axes = self.array.axes();
        &axes[axes.len() - from_last]
    }

    fn scale(&self) -> Scale {
        let scale = Scale::of(self.array.values().iter());
        let scale = self.range.map_or(scale, |range| scale.between(range));
        self.colormap.map_or(scale, |map| scale.with(map))
    }

    fn bar(&self) -> ColorBar<'_> {
        let scale = self.scale();
        let (least, most) = scale.ends();
        let any = |test: &dyn Fn(f64) -> bool| self.array.values().iter().any(|value| test(*value));
        ColorBar {
            scale,
            name: &self.value,
            beyond: [any(&|value| value < least), any(&|value| value > most)],
            none: any(&|value| value.is_nan()),
            faded: self.intervals.is_some(),
        }
    }

    /// The cells of a panel.
    fn cells(&self, layout: &Layout, panel: &Panel) -> Vec<Cell> {
        let (rows, columns) = self.shape();
        let (left, top) = layout.corner(panel.place);
        let (width, height) = layout.cell;
        let first = panel.matrix * rows * columns;
        let cell = |row: usize, column: usize| {
            let (x, y) = ((column - panel.columns.start) as f64, row as f64);
            let corners = [x, y, x + 1.0, y + 1.0];
            let ends = [left, top, left, top];
            let unit = [width, height, width, height];
            let index = row * columns + column;
            let corners = [0, 1, 2, 3].map(|side| ends[side] + corners[side] * unit[side]);
            let index = first + index;
            let interval = self.intervals.as_ref().and_then(|all| all.get(index).copied());
            Cell { corners, index, value: layout.values[index], interval }
        };
        (0..rows)
            .flat_map(|row| panel.columns.clone().map(move |column| (row, column)))
            .map(|(r, c)| cell(r, c))
            .collect()
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        layout: &Layout,
        filled: bool,
    ) -> Result<(), PlotError> {
        font::ready();
        area.fill(&WHITE).map_err(failed)?;
        if !self.title.is_empty() {
            text(area, &self.title, (12.0, 12.0), TITLE, (HPos::Left, VPos::Top), false)?;
        }
        let bar = self.bar();
        for panel in &layout.panels {
            self.draw_panel(area, layout, panel, bar.scale, filled)?;
        }
        bar.draw(area, layout.bar)?;
        area.present().map_err(failed)
    }

    fn draw_panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        layout: &Layout,
        panel: &Panel,
        scale: Scale,
        filled: bool,
    ) -> Result<(), PlotError> {
        let (left, top) = layout.corner(panel.place);
        let (width, height) = layout.cell;
        text(area, &panel.name, (left, top - 5.0), NAMES, (HPos::Left, VPos::Bottom), false)?;
        for cell in self.cells(layout, panel) {
            let [x, y, right, bottom] = cell.corners;
            if filled {
                let corners = [(x, y), (right, y), (right, bottom), (x, bottom)];
                polygon(area, corners, cell.color(scale).mix(1.0))?;
            }
            if let Some(written) = self.texts.as_ref().and_then(|texts| texts.get(cell.index)) {
                let fits = ((width - 4.0) / (LABELS * 0.56)) as usize;
                let written: String = written.chars().take(fits).collect();
                let ink = if is_dark(cell.color(scale)) { WHITE } else { BLACK };
                let middle = ((x + right) / 2.0, (y + bottom) / 2.0);
                text_in(area, &written, middle, LABELS, (HPos::Center, VPos::Center), false, ink)?;
            }
        }
        let (rows, columns) = (self.shape().0, panel.columns.len());
        let (right, bottom) = (left + columns as f64 * width, top + rows as f64 * height);
        path(area, &[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], BLACK_INK, FINE)?;

        if panel.labeled.0 {
            let labels = &self.axis(2).labels;
            for row in &layout.rows.shown {
                let end = (left - 6.0, top + (*row as f64 + 0.5) * height);
                text(area, &labels[*row], end, LABELS, (HPos::Right, VPos::Center), false)?;
            }
            let name = layout.rows.axis_name(&self.axis(2).name);
            let middle = (left - layout.left + NAMES / 2.0 + 3.0, (top + bottom) / 2.0);
            text(area, &name, middle, NAMES, (HPos::Center, VPos::Center), true)?;
        }
        if panel.labeled.1 {
            let labels = &self.axis(1).labels;
            let anchor = if layout.upright { (HPos::Right, VPos::Center) } else { (HPos::Center, VPos::Top) };
            for column in layout.columns.shown.iter().filter(|column| panel.columns.contains(column)) {
                let middle = left + ((column - panel.columns.start) as f64 + 0.5) * width;
                text(area, &labels[*column], (middle, bottom + 6.0), LABELS, anchor, layout.upright)?;
            }
            let name = layout.columns.axis_name(&self.axis(1).name);
            let under = ((left + right) / 2.0, bottom + layout.below - NAMES - 8.0);
            text(area, &name, under, NAMES, (HPos::Center, VPos::Top), false)?;
        }
        Ok(())
    }
}

impl Picture for Heatmap<'_> {
    fn to_svg(&self) -> Result<String, PlotError> {
        let layout = Layout::of(self);
        let svg = draw::fine_svg(layout.size, |area| self.draw(&area, &layout, false))?;
        Ok(self.with_cells(&svg, &layout))
    }

    fn to_png(&self, scale: u32) -> Result<Vec<u8>, PlotError> {
        let layout = Layout::of(self);
        draw::fine_png(layout.size, scale, |area| self.draw(&area, &layout, true))
    }
}
