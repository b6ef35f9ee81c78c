//! Heatmaps.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::color::Scale;
use super::draw::{self, BLACK_INK, LABELS, NAMES, TITLE, every, failed, write};
use super::font;
use super::page;
use crate::error::PlotError;
use crate::picture::Picture;
use hooklens_analysis::labeled::LabeledArray;

/// Maximum number of cells in a picture.
const MOST: usize = 250_000;

/// A heatmap with the array's second-to-last axis as rows and its last axis as columns. A three-dimensional array is
/// drawn as one panel per index of its first axis. All panels share one color scale: red above zero and blue below it
/// or, without negative values, white to blue.
///
/// ```
/// use hooklens::plot::{Heatmap, Picture};
/// use hooklens::{LabeledArray, LabeledAxis};
/// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::new("pos", ["0: <bos>", "1: king", "2: drum"])];
/// let effects = LabeledArray::from_values(axes, [0.0, 0.1, 0.9, 0.0, -0.2, 1.0])?;
/// let svg = Heatmap::of(&effects)?.title("effects").to_svg()?;
/// assert!(svg.contains("1: king") && svg.contains("layer"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Heatmap<'a> {
    array: &'a LabeledArray,
    title: String,
    texts: Option<Vec<String>>,
}

/// Positions and sizes, in pixels.
struct Layout {
    cell: (i32, i32),
    left: i32,
    top: i32,
    /// Whether the labels of columns are vertical because they do not fit side by side.
    upright: bool,
    below: i32,
    panels: (usize, usize),
    bar: i32,
}

impl<'a> Heatmap<'a> {
    /// Creates a heatmap of an array with two or three axes.
    ///
    /// # Errors
    /// [`PlotError::Axes`] for another number of axes; [`PlotError::Nothing`] for an empty array;
    /// [`PlotError::TooMany`] for more than 250,000 values.
    pub fn of(array: &'a LabeledArray) -> Result<Self, PlotError> {
        let names = || array.axes().iter().map(|axis| axis.name.clone()).collect();
        if !(2..=3).contains(&array.axes().len()) {
            return Err(PlotError::Axes { axes: names() });
        }
        if array.values().is_empty() {
            return Err(PlotError::Nothing);
        }
        let places = array.values().len();
        if places > MOST {
            return Err(PlotError::TooMany { places, most: MOST, axes: names() });
        }
        Ok(Self { array, title: String::new(), texts: None })
    }

    /// Sets the title, drawn above the picture.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the text of each cell, in row order. Texts too long for a cell are truncated.
    #[must_use]
    pub fn texts(mut self, texts: Vec<String>) -> Self {
        self.texts = Some(texts);
        self
    }

    /// Saves the picture to a file atomically, as SVG, PNG or HTML depending on the file's extension.
    ///
    /// # Errors
    /// [`PlotError::Kind`] for another extension; [`PlotError::Draw`] if drawing fails; [`PlotError::Write`] if the
    /// file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        draw::save(path.as_ref(), || self.to_svg(), || self.to_png(), || Ok(page::whole(&self.title, &self.to_svg()?)))
    }

    /// Numbers of rows, columns and panels.
    fn shape(&self) -> (usize, usize, usize) {
        match *self.array.values().shape() {
            [panels, rows, columns] => (rows, columns, panels),
            [rows, columns] => (rows, columns, 1),
            _ => (1, 1, 1),
        }
    }

    /// The name and labels of an axis, with axes counted from the last (1 for columns, 2 for rows, 3 for panels).
    fn axis(&self, from_last: usize) -> (&str, &[String]) {
        let axes = self.array.axes();
        let axis = &axes[axes.len() - from_last];
        (&axis.name, &axis.labels)
    }

    fn layout(&self) -> Layout {
        let (rows, columns, panels) = self.shape();
        let widest = |labels: &[String]| labels.iter().map(|label| font::width(label, LABELS)).fold(0.0, f64::max);
        let text = self.texts.as_deref().map_or(0.0, |texts| widest(texts).min(90.0) + 6.0);
        let room = 620.0 / if panels > 1 { 2.0 } else { 1.0 };
        let fit = |count: usize, least: f64, most: f64| (room / count as f64).clamp(least, most);
        let cell = (
            fit(columns, 2.0, 44.0).max(text) as i32,
            fit(rows, 2.0, 30.0).max(if text > 0.0 { 20.0 } else { 0.0 }) as i32,
        );
        let (across, labels) = (widest(self.axis(1).1), self.axis(1).1.len());
        let upright = across + 6.0 > f64::from(cell.0) && labels > 1 && across > 16.0;
        let below = (if upright { across + 10.0 } else { LABELS + 8.0 } + NAMES + 10.0) as i32;
        let left = (widest(self.axis(2).1) + NAMES + 22.0) as i32;
        let wide = (900 / (columns as i32 * cell.0 + left + 12).max(1)).max(1) as usize;
        let panels = (wide.min(panels), panels.div_ceil(wide.min(panels)));
        let title = if self.title.is_empty() { 10 } else { (TITLE + 22.0) as i32 };
        Layout { cell, left, top: title, upright, below, panels, bar: 92 }
    }

    /// Width and height of one panel including its labels.
    fn panel(&self, layout: &Layout) -> (i32, i32) {
        let (rows, columns, panels) = self.shape();
        let name = if panels > 1 { (NAMES + 8.0) as i32 } else { 0 };
        (layout.left + columns as i32 * layout.cell.0 + 12, name + rows as i32 * layout.cell.1 + layout.below)
    }

    fn size(&self, layout: &Layout) -> (u32, u32) {
        let (width, height) = self.panel(layout);
        let title = font::width(&self.title, TITLE) as i32 + 24;
        let across = (layout.panels.0 as i32 * width + layout.bar).max(title);
        let down = (layout.top + layout.panels.1 as i32 * height + 8).max(layout.top + 150);
        (across as u32, down as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>, layout: &Layout) -> Result<(), PlotError> {
        draw::begin(&area, &self.title)?;
        let scale = Scale::of(self.array.values().iter());
        let (width, height) = self.panel(layout);
        let (_, _, panels) = self.shape();
        for panel in 0..panels {
            let corner =
                ((panel % layout.panels.0) as i32 * width, layout.top + (panel / layout.panels.0) as i32 * height);
            self.draw_panel(&area, layout, scale, panel, corner)?;
        }
        draw::bar(&area, scale, (layout.panels.0 as i32 * width + 8, layout.top))?;
        area.present().map_err(failed)
    }

    fn draw_panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        layout: &Layout,
        scale: Scale,
        panel: usize,
        (x, y): (i32, i32),
    ) -> Result<(), PlotError> {
        let (rows, columns, panels) = self.shape();
        let (cell, mut top) = (layout.cell, y);
        let left = x + layout.left;
        if panels > 1 {
            let (name, labels) = self.axis(3);
            let text = format!("{name} {}", labels[panel]);
            write(area, &text, (left, top + 2), NAMES, HPos::Left, VPos::Top, false, &BLACK_INK)?;
            top += (NAMES + 8.0) as i32;
        }
        for row in 0..rows {
            for column in 0..columns {
                let place = (panel * rows + row) * columns + column;
                let value = match self.array.values().ndim() {
                    3 => self.array.values()[[panel, row, column]],
                    _ => self.array.values()[[row, column]],
                };
                let corner = (left + column as i32 * cell.0, top + row as i32 * cell.1);
                let end = (corner.0 + cell.0, corner.1 + cell.1);
                let fill = Rectangle::new([corner, end], scale.color(value).filled());
                area.draw(&fill).map_err(failed)?;
                if let Some(text) = self.texts.as_ref().and_then(|texts| texts.get(place)) {
                    let fits = ((f64::from(cell.0) - 4.0) / (LABELS * 0.56)) as usize;
                    let text: String = text.chars().take(fits).collect();
                    let ink = if scale.is_dark(value) { WHITE } else { BLACK_INK };
                    let middle = (corner.0 + cell.0 / 2, corner.1 + cell.1 / 2);
                    write(area, &text, middle, LABELS, HPos::Center, VPos::Center, false, &ink)?;
                }
            }
        }
        let (right, bottom) = (left + columns as i32 * cell.0, top + rows as i32 * cell.1);
        area.draw(&Rectangle::new([(left, top), (right, bottom)], BLACK_INK.stroke_width(1))).map_err(failed)?;

        let (name, labels) = self.axis(2);
        for (row, label) in labels.iter().enumerate().step_by(every(labels.len(), cell.1.into(), LABELS + 1.0)) {
            let middle = (left - 6, top + row as i32 * cell.1 + cell.1 / 2);
            write(area, label, middle, LABELS, HPos::Right, VPos::Center, false, &BLACK_INK)?;
        }
        let middle = (x + 10, (top + bottom) / 2);
        write(area, name, middle, NAMES, HPos::Center, VPos::Center, true, &BLACK_INK)?;

        let (name, labels) = self.axis(1);
        let across = labels.iter().map(|label| font::width(label, LABELS)).fold(0.0, f64::max);
        let room = if layout.upright { LABELS + 1.0 } else { across + 4.0 };
        for (column, label) in labels.iter().enumerate().step_by(every(labels.len(), cell.0.into(), room)) {
            let middle = left + column as i32 * cell.0 + cell.0 / 2;
            match layout.upright {
                true => write(area, label, (middle, bottom + 6), LABELS, HPos::Right, VPos::Center, true, &BLACK_INK)?,
                false => write(area, label, (middle, bottom + 6), LABELS, HPos::Center, VPos::Top, false, &BLACK_INK)?,
            }
        }
        let under = bottom + layout.below - NAMES as i32 - 6;
        write(area, name, ((left + right) / 2, under), NAMES, HPos::Center, VPos::Top, false, &BLACK_INK)
    }
}

impl Picture for Heatmap<'_> {
    fn to_svg(&self) -> Result<String, PlotError> {
        let layout = self.layout();
        draw::svg(self.size(&layout), |area| self.draw(area, &layout))
    }

    fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        let layout = self.layout();
        draw::png(self.size(&layout), |area| self.draw(area, &layout))
    }
}
