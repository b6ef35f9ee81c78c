//! Attention patterns of many heads as one figure.

use std::path::Path;

use ndarray::Array2;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::color::Scale;
use super::draw::{self, BLACK_INK, LABELS, NAMES, TITLE, every, failed, write};
use super::font;
use super::page;
use super::patterns::AttentionPatterns;
use super::token_text::drawn;
use crate::error::PlotError;

/// Width that panels share: a page's, at which letters stay readable.
const WIDTH: i32 = 900;
/// Cells a picture has at most.
const MOST: usize = 250_000;
/// Letters of a token's label at most.
const LETTERS: usize = 14;
/// Space between panels, and above each for its name.
const GAP: i32 = 10;
const NAME: i32 = 18;
/// Space for the bar of colors, and for the names of the axes.
const BAR: i32 = 92;
const AXIS: i32 = 20;

/// Attention patterns as one figure: one panel per head, queries downwards, keys along. One scale for all, white to
/// blue. Where a panel has fewer dots than cells, a dot is the largest of the cells it stands for.
///
/// ```
/// use hooklens::plot::{AttentionPatterns, PatternGrid};
/// use hooklens::prelude::*;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("attention.svg");
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let patterns = AttentionPatterns::run(&model, "king drum sun star king drum sun", &[])?;
/// PatternGrid::of(&patterns)?.title("induction").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PatternGrid<'a> {
    patterns: &'a AttentionPatterns,
    title: String,
    /// Tokens at the axes, each with its position.
    labels: Vec<String>,
    layout: Layout,
}

/// Where things are, in pixels.
#[derive(Debug, Clone, Copy)]
struct Layout {
    columns: usize,
    rows: usize,
    /// Cells along a panel's side, and how wide one is.
    cells: usize,
    cell: i32,
    /// Space for the labels of queries and keys.
    labels: i32,
    top: i32,
}

impl Layout {
    fn side(&self) -> i32 {
        self.cells as i32 * self.cell
    }

    /// The upper left corner of a panel's pattern.
    fn corner(&self, panel: usize) -> (i32, i32) {
        let (row, column) = (panel / self.columns, panel % self.columns);
        let x = AXIS + self.labels + column as i32 * (self.side() + GAP);
        (x, self.top + row as i32 * (self.side() + GAP + NAME) + NAME)
    }
}

impl<'a> PatternGrid<'a> {
    /// A picture of all these heads.
    ///
    /// # Errors
    /// [`PlotError::TooMany`] if they are more than a picture shows.
    pub fn of(patterns: &'a AttentionPatterns) -> Result<Self, PlotError> {
        let (heads, tokens) = (patterns.heads_shown(), patterns.tokens());
        let label = |(at, token): (usize, &String)| format!("{} {}", patterns.first() + at, drawn(token, LETTERS));
        let labels: Vec<String> = tokens.iter().enumerate().map(label).collect();
        let widest = labels.iter().map(|label| font::width(label, LABELS)).fold(0.0, f64::max);
        let per_layer = heads.iter().filter(|head| head.layer == heads[0].layer).count();
        // A row a layer, or, for few heads a layer or many, rows of about as many as there are rows.
        let square = (heads.len() as f64).sqrt().ceil() as usize;
        let columns = if (3..=16).contains(&per_layer) { per_layer } else { square.clamp(1, 16) };
        let labels_room = widest as i32 + 8;
        let room = (WIDTH - BAR - AXIS - labels_room) / columns as i32 - GAP;
        let side = room.clamp(56, 420);
        let cells = tokens.len().min(side as usize / 2);
        let cell = (side / cells as i32).clamp(2, 30);
        let places = heads.len() * cells * cells;
        if places > MOST {
            let axes = ["layers", "heads", "positions"].map(String::from).to_vec();
            return Err(PlotError::TooMany { places, most: MOST, axes });
        }
        let rows = heads.len().div_ceil(columns);
        let layout = Layout { columns, rows, cells, cell, labels: labels_room, top: 8 };
        Ok(Self { patterns, title: String::new(), labels, layout })
    }

    /// Writes this above the picture.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self.layout.top = if self.title.is_empty() { 8 } else { (TITLE + 20.0) as i32 };
        self
    }

    /// The picture as SVG.
    ///
    /// # Errors
    /// [`PlotError::Draw`].
    pub fn to_svg(&self) -> Result<String, PlotError> {
        draw::svg(self.size(), |area| self.draw(area))
    }

    /// The picture as PNG, as many dots as [`PatternGrid::to_svg`] has units. For print take the SVG.
    ///
    /// # Errors
    /// [`PlotError::Draw`].
    pub fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        draw::png(self.size(), |area| self.draw(area))
    }

    /// Writes the picture to a file that appears whole or not at all: SVG, PNG or a page by its ending.
    ///
    /// # Errors
    /// [`PlotError::Kind`], [`PlotError::Draw`], [`PlotError::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        draw::save(path.as_ref(), || self.to_svg(), || self.to_png(), || Ok(page::whole(&self.title, &self.to_svg()?)))
    }

    fn size(&self) -> (u32, u32) {
        let layout = &self.layout;
        let (right, bottom) =
            (layout.corner(layout.columns - 1).0, layout.corner((layout.rows - 1) * layout.columns).1);
        let across = (right + layout.side() + BAR).max(font::width(&self.title, TITLE) as i32 + 24);
        let down = (bottom + layout.side() + layout.labels + AXIS + 4).max(layout.top + 150);
        (across as u32, down as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<(), PlotError> {
        draw::begin(&area, &self.title)?;
        let most = self.patterns.heads_shown().iter().flat_map(|head| &head.values).fold(0.0, |m: f32, v| m.max(*v));
        let scale = Scale::Rising { most: f64::from(most).max(1.0) };
        for panel in 0..self.patterns.heads_shown().len() {
            self.draw_panel(&area, scale, panel)?;
        }
        let layout = &self.layout;
        let (first, last) = (layout.corner(0), layout.corner(layout.columns * layout.rows - 1));
        let (right, bottom) = (last.0 + layout.side(), last.1 + layout.side());
        let middle = (10, (first.1 + bottom) / 2);
        write(&area, "query", middle, NAMES, HPos::Center, VPos::Center, true, &BLACK_INK)?;
        let under = ((first.0 + right) / 2, bottom + layout.labels + 2);
        write(&area, "key", under, NAMES, HPos::Center, VPos::Top, false, &BLACK_INK)?;
        draw::bar(&area, scale, (right + 12, first.1))?;
        area.present().map_err(failed)
    }

    fn draw_panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
        panel: usize,
    ) -> Result<(), PlotError> {
        let (layout, head) = (&self.layout, &self.patterns.heads_shown()[panel]);
        let (left, top) = layout.corner(panel);
        let (side, cell) = (layout.side(), layout.cell);
        write(area, &head.name(), (left, top - 4), LABELS, HPos::Left, VPos::Bottom, false, &BLACK_INK)?;
        area.draw(&Rectangle::new([(left, top), (left + side, top + side)], scale.color(0.0).filled()))
            .map_err(failed)?;
        for ((row, column), value) in pooled(&head.values, layout.cells).indexed_iter() {
            let color = scale.color(f64::from(*value));
            if color != scale.color(0.0) {
                let (x, y) = (left + column as i32 * cell, top + row as i32 * cell);
                area.draw(&Rectangle::new([(x, y), (x + cell, y + cell)], color.filled())).map_err(failed)?;
            }
        }
        let frame = Rectangle::new([(left, top), (left + side, top + side)], BLACK_INK.stroke_width(1));
        area.draw(&frame).map_err(failed)?;

        // Labels at the left of each row of panels, and under each column's last.
        let pitch = f64::from(side) / self.labels.len() as f64;
        let step = every(self.labels.len(), pitch, LABELS + 1.0);
        let place = |at: usize| (pitch * (at as f64 + 0.5)) as i32;
        for (at, label) in self.labels.iter().enumerate().step_by(step) {
            if panel.is_multiple_of(layout.columns) {
                let end = (left - 5, top + place(at));
                write(area, label, end, LABELS, HPos::Right, VPos::Center, false, &BLACK_INK)?;
            }
            if panel + layout.columns >= self.patterns.heads_shown().len() {
                let end = (left + place(at), top + side + 5);
                write(area, label, end, LABELS, HPos::Right, VPos::Center, true, &BLACK_INK)?;
            }
        }
        Ok(())
    }
}

/// A pattern in so many cells a side, each the largest of those it stands for.
fn pooled(values: &Array2<f32>, side: usize) -> Array2<f32> {
    let mut pooled = Array2::zeros((side, side));
    let len = values.nrows().max(1);
    for ((query, key), value) in values.indexed_iter() {
        let place = &mut pooled[[query * side / len, key * side / len]];
        *place = value.max(*place);
    }
    pooled
}
