//! Attention patterns of many heads as one figure.

use std::path::Path;

use ndarray::Array2;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::color::Scale;
use super::color_bar::ColorBar;
use super::draw::{self, BLACK_INK, FINE, LABELS, NAMES, TITLE, failed};
use super::font;
use super::label_choice::LabelChoice;
use super::page;
use super::patterns::{AttentionPatterns, HeadAttention, ShownHeads};
use super::pen::{path, polygon, text};
use super::token_text::drawn;
use crate::error::PlotError;
use crate::picture::Picture;

/// Total width of the panels, chosen so that text stays readable when the figure is scaled to a page.
const WIDTH: i32 = 900;
/// Maximum number of cells in a picture.
const MOST: usize = 250_000;
/// Maximum number of characters of a token label.
const LETTERS: usize = 14;
/// Space between panels.
const GAP: i32 = 10;
/// Space above each panel for its name.
const NAME: i32 = 18;
/// Space for the color bar.
const BAR: i32 = 92;
/// Space for the axis names.
const AXIS: i32 = 20;

/// Attention patterns in one figure: one panel per head, with queries as rows and keys as columns, on a common scale
/// from white to blue. If a panel has fewer cells than the pattern, each cell shows the maximum of the values that it
/// covers.
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
    /// One label per token, with its position.
    labels: Vec<String>,
    layout: Layout,
}

/// Positions and sizes, in pixels.
#[derive(Debug, Clone, Copy)]
struct Layout {
    columns: usize,
    rows: usize,
    /// Number of cells along a panel's side, and the width of a cell.
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
    /// Creates a figure of all heads in `patterns`.
    ///
    /// # Errors
    /// [`PlotError::TooMany`] if the patterns have too many cells for a picture.
    pub fn of(patterns: &'a AttentionPatterns) -> Result<Self, PlotError> {
        let (heads, tokens) = (patterns.heads_shown(), patterns.tokens());
        let label = |(at, token): (usize, &String)| format!("{} {}", patterns.first() + at, drawn(token, LETTERS));
        let labels: Vec<String> = tokens.iter().enumerate().map(label).collect();
        let widest = labels.iter().map(|label| font::width(label, LABELS)).fold(0.0, f64::max);
        let per_layer = heads.iter().filter(|head| head.layer == heads[0].layer).count();
        // One row per layer or, if layers have very few or very many heads, a roughly square grid.
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

    /// Sets the title, drawn above the picture.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self.layout.top = if self.title.is_empty() { 8 } else { (TITLE + 20.0) as i32 };
        self
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

    fn size(&self) -> (u32, u32) {
        let layout = &self.layout;
        let (right, bottom) =
            (layout.corner(layout.columns - 1).0, layout.corner((layout.rows - 1) * layout.columns).1);
        let across = (right + layout.side() + BAR).max(font::width(&self.title, TITLE) as i32 + 24);
        let down = (bottom + layout.side() + layout.labels + AXIS + 4).max(layout.top + 190);
        (across as u32, down as u32)
    }

    fn bar(&self) -> ColorBar<'_> {
        let most = self.patterns.heads_shown().iter().flat_map(|head| &head.values).fold(0.0, |m: f32, v| m.max(*v));
        let scale = Scale::rising(f64::from(most).max(1.0));
        ColorBar { scale, name: "attention weight", beyond: [false; 2], none: false, faded: false }
    }

    /// The labels that are drawn: the labels of the tokens that get the most attention.
    fn labels_shown(&self) -> LabelChoice {
        let pitch = f64::from(self.layout.side()) / self.labels.len() as f64;
        let heads = self.patterns.heads_shown();
        let most = |head: &HeadAttention, key: usize| head.values.column(key).iter().fold(0.0, |m: f32, v| m.max(*v));
        let strength = |key: usize| f64::from(heads.iter().fold(0.0, |most_of, head| most(head, key).max(most_of)));
        LabelChoice::of(&self.labels, pitch, LABELS + 1.0, strength)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), PlotError> {
        font::ready();
        area.fill(&WHITE).map_err(failed)?;
        if !self.title.is_empty() {
            text(area, &self.title, (12.0, 12.0), TITLE, (HPos::Left, VPos::Top), false)?;
        }
        let (bar, shown) = (self.bar(), self.labels_shown());
        for panel in 0..self.patterns.heads_shown().len() {
            self.draw_panel(area, bar.scale, &shown, panel)?;
        }
        let layout = &self.layout;
        let (first, last) = (layout.corner(0), layout.corner(layout.columns * layout.rows - 1));
        let (right, bottom) = (f64::from(last.0 + layout.side()), f64::from(last.1 + layout.side()));
        let (left, top) = (f64::from(first.0), f64::from(first.1));
        let middle = (10.0, (top + bottom) / 2.0);
        text(area, &shown.axis_name("query"), middle, NAMES, (HPos::Center, VPos::Center), true)?;
        let under = ((left + right) / 2.0, bottom + f64::from(layout.labels) + 2.0);
        text(area, &shown.axis_name("key"), under, NAMES, (HPos::Center, VPos::Top), false)?;
        bar.draw(area, (right + 12.0, top))?;
        area.present().map_err(failed)
    }

    fn draw_panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
        shown: &LabelChoice,
        panel: usize,
    ) -> Result<(), PlotError> {
        let (layout, head) = (&self.layout, &self.patterns.heads_shown()[panel]);
        let (left, top) = layout.corner(panel);
        let (left, top) = (f64::from(left), f64::from(top));
        let (side, cell) = (f64::from(layout.side()), f64::from(layout.cell));
        let square = |x: f64, y: f64, side: f64| [(x, y), (x + side, y), (x + side, y + side), (x, y + side)];
        text(area, &head.name(), (left, top - 4.0), LABELS, (HPos::Left, VPos::Bottom), false)?;
        polygon(area, square(left, top, side), scale.color(0.0).mix(1.0))?;
        for ((row, column), value) in pooled(&head.values, layout.cells).indexed_iter() {
            let color = scale.color(f64::from(*value));
            if color != scale.color(0.0) {
                polygon(area, square(left + column as f64 * cell, top + row as f64 * cell, cell), color.mix(1.0))?;
            }
        }
        let [a, b, c, d] = square(left, top, side);
        path(area, &[a, b, c, d, a], BLACK_INK, FINE)?;

        // Labels left of each row of panels, and below the last panel of each column.
        let pitch = side / self.labels.len() as f64;
        for at in &shown.shown {
            let (label, middle) = (&self.labels[*at], pitch * (*at as f64 + 0.5));
            if panel.is_multiple_of(layout.columns) {
                text(area, label, (left - 5.0, top + middle), LABELS, (HPos::Right, VPos::Center), false)?;
            }
            if panel + layout.columns >= self.patterns.heads_shown().len() {
                text(area, label, (left + middle, top + side + 5.0), LABELS, (HPos::Right, VPos::Center), true)?;
            }
        }
        Ok(())
    }
}

/// Downsamples a pattern to `side` by `side` cells. Each cell has the maximum of the values that it covers.
fn pooled(values: &Array2<f32>, side: usize) -> Array2<f32> {
    let mut pooled = Array2::zeros((side, side));
    let len = values.nrows().max(1);
    for ((query, key), value) in values.indexed_iter() {
        let place = &mut pooled[[query * side / len, key * side / len]];
        *place = value.max(*place);
    }
    pooled
}

impl Picture for PatternGrid<'_> {
    fn to_svg(&self) -> Result<String, PlotError> {
        draw::fine_svg(self.size(), |area| self.draw(&area))
    }

    fn to_png(&self, scale: u32) -> Result<Vec<u8>, PlotError> {
        draw::fine_png(self.size(), scale, |area| self.draw(&area))
    }
}
