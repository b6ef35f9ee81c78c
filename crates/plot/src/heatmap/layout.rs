//! Positions and sizes in a heatmap, in units.

use super::{Heatmap, Panel};
use crate::draw::{LABELS, NAMES, TITLE};
use crate::font;
use crate::label_choice::LabelChoice;
use crate::panel_grid::panel_grid;
use crate::pen::wide;

/// Total width of the cells and labels, chosen so that texts stay readable when the picture is scaled to a page.
const WIDTH: f64 = 860.0;
/// Total height of the cells.
const HEIGHT: f64 = 640.0;
/// Maximum number of labels along an axis for which the picture is enlarged until all labels fit.
const ALL_LABELS: usize = 120;
/// Maximum size of a cell.
const CELL: (f64, f64) = (44.0, 30.0);
/// Space between panels.
const GAP: f64 = 14.0;

pub(super) struct Layout {
    pub(super) cell: (f64, f64),
    /// Space left of the panels, for labels and the axis name.
    pub(super) left: f64,
    /// Space below the last row of panels.
    pub(super) below: f64,
    /// Whether the labels of columns are vertical because they do not fit side by side.
    pub(super) upright: bool,
    pub(super) panels: Vec<Panel>,
    /// The row labels that are drawn.
    pub(super) rows: LabelChoice,
    /// The column labels that are drawn.
    pub(super) columns: LabelChoice,
    /// The values in row order.
    pub(super) values: Vec<f64>,
    top: f64,
    /// Distances from one panel to the next.
    pitch: (f64, f64),
    /// Upper left corner of the color bar.
    pub(super) bar: (f64, f64),
    pub(super) size: (u32, u32),
}

impl Layout {
    pub(super) fn of(map: &Heatmap<'_>) -> Self {
        let (rows, columns) = map.shape();
        let widest = |labels: &[String]| labels.iter().map(|label| wide(label, LABELS)).fold(0.0, f64::max);
        let left = widest(&map.axis(2).labels) + NAMES + 20.0;
        let across = widest(&map.axis(1).labels);
        // Make cells wide enough for their texts, and for labels side by side.
        let text = map.texts.as_deref().map_or(0.0, |texts| {
            let widest = texts.iter().map(|text| font::width(text, LABELS)).fold(0.0, f64::max).min(90.0);
            (widest + 6.0).max(if across <= 90.0 { across + 6.0 } else { 0.0 })
        });
        let mut panels = Panels::of(map);
        let (grid_columns, grid_rows) = panels.grid;

        // Cells shrink until all panels fit, but not so much that labels would be left out, unless there are very many.
        let least = |labels: usize| if labels <= ALL_LABELS { LABELS + 1.0 } else { 2.0 };
        let fit = |room: f64, count: usize, least: f64, most: f64| (room / count as f64).min(most).max(least);
        let room = (WIDTH - left - GAP * (grid_columns - 1) as f64) / grid_columns as f64;
        let width = fit(room, columns, least(columns * grid_columns), CELL.0).max(text);
        let least_height = least(rows * grid_rows).max(if text > 0.0 { 20.0 } else { 0.0 });
        let height = fit(HEIGHT / grid_rows as f64, rows, least_height, CELL.1);
        // Round down to quarters of a unit, so that cells meet exactly.
        let cell = ((width * 4.0).floor() / 4.0, (height * 4.0).floor() / 4.0);
        // Do not wrap a picture that is only a little too wide.
        if text > 0.0 && panels.list.len() == 1 && columns as f64 * cell.0 > 1.15 * WIDTH {
            panels.wrap(columns, (((WIDTH - left) / cell.0) as usize).max(1));
        }
        let (grid_columns, grid_rows) = panels.grid;

        let upright = across + 4.0 > cell.0 && columns > 1 && across > LABELS;
        let strength = |from_last: usize, at: usize| map.strength(from_last, at);
        let rows_shown = LabelChoice::of(&map.axis(2).labels, cell.1, LABELS + 1.0, |at| strength(2, at));
        let room = if upright { LABELS + 1.0 } else { across + 4.0 };
        let columns_shown = LabelChoice::of(&map.axis(1).labels, cell.0, room, |at| strength(1, at));
        let below = if upright { across + 8.0 } else { LABELS + 8.0 } + NAMES + 14.0;
        let title = if map.title.is_empty() { 12.0 } else { TITLE + 24.0 };
        let named = if panels.list.iter().any(|panel| !panel.name.is_empty()) { NAMES + 8.0 } else { 0.0 };

        // Wrapped panels each have their own labels below; in a grid, only the last panel of each column has labels.
        let between = if panels.wrapped { below } else { 0.0 };
        let in_a_row = panels.list.iter().map(|panel| panel.columns.len()).max().unwrap_or(columns);
        let inner = (in_a_row as f64 * cell.0, rows as f64 * cell.1);
        for panel in &mut panels.list {
            if panel.name.is_empty() {
                continue;
            }
            // Names of narrow panels are shortened to labels.
            if wide(&panel.name, NAMES) > inner.0 + GAP - 4.0 {
                panel.name = map.short_name(panel.matrix);
            }
        }
        let pitch = (inner.0 + GAP, named + inner.1 + GAP + between);
        let top = title + named;
        let bar = map.bar();
        let right = left + grid_columns as f64 * pitch.0;
        let bottom = top + grid_rows as f64 * pitch.1 - GAP - named + if panels.wrapped { 0.0 } else { below };
        let across = (right + 6.0 + bar.width()).max(wide(&map.title, TITLE) + 24.0);
        let down = (bottom + 6.0).max(title + bar.height() + 8.0);
        Self {
            cell,
            left,
            below,
            upright,
            panels: panels.list,
            rows: rows_shown,
            columns: columns_shown,
            values: map.array.values().iter().copied().collect(),
            top,
            pitch,
            bar: (right + 4.0, top),
            size: (across.ceil() as u32, down.ceil() as u32),
        }
    }

    /// The upper left corner of the cells of a panel.
    pub(super) fn corner(&self, (column, row): (usize, usize)) -> (f64, f64) {
        let quarter = |unit: f64| (unit * 4.0).round() / 4.0;
        (quarter(self.left + column as f64 * self.pitch.0), quarter(self.top + row as f64 * self.pitch.1))
    }
}

/// The panels of a heatmap.
struct Panels {
    list: Vec<Panel>,
    /// Numbers of columns and rows.
    grid: (usize, usize),
    wrapped: bool,
}

impl Panels {
    fn of(map: &Heatmap<'_>) -> Self {
        let (rows, columns) = map.shape();
        let outer: Vec<usize> = map.array.values().shape()[..map.array.axes().len() - 2].to_vec();
        let count: usize = outer.iter().product();
        let grid = match outer[..] {
            [down, across] => (across, down),
            _ => {
                let side = |count: usize, most: f64, room: f64| (count as f64 * most).min(room);
                panel_grid(count, (side(columns, CELL.0, WIDTH), side(rows, CELL.1, HEIGHT)), (WIDTH, HEIGHT))
            }
        };
        let panel = |matrix: usize| Panel {
            name: map.panel_name(matrix),
            matrix,
            columns: 0..columns,
            place: (matrix % grid.0, matrix / grid.0),
            labeled: (matrix.is_multiple_of(grid.0), matrix + grid.0 >= count),
        };
        Self { list: (0..count).map(panel).collect(), grid, wrapped: false }
    }

    /// Splits a single panel with this number of columns into several of at most `most` columns, one below the other.
    fn wrap(&mut self, columns: usize, most: usize) {
        let lines = columns.div_ceil(most);
        if lines == 1 {
            return;
        }
        // Make all lines about equally long.
        let each = columns.div_ceil(lines);
        let panel = |line: usize| Panel {
            name: String::new(),
            matrix: 0,
            columns: line * each..((line + 1) * each).min(columns),
            place: (0, line),
            labeled: (true, true),
        };
        *self = Self { list: (0..lines).map(panel).collect(), grid: (1, lines), wrapped: true };
    }
}

impl Heatmap<'_> {
    /// The largest magnitude over all panels in the row (if `from_last` is 2) or column (if it is 1) with index `at`.
    fn strength(&self, from_last: usize, at: usize) -> f64 {
        let axis = ndarray::Axis(self.array.axes().len() - from_last);
        let values = self.array.values().index_axis(axis, at);
        values.iter().filter(|value| value.is_finite()).fold(0.0, |most, value| value.abs().max(most))
    }

    /// The labels of a panel on the outer axes, each with the name of its axis.
    fn panel_labels(&self, matrix: usize) -> Vec<(&str, &str)> {
        let axes = &self.array.axes()[..self.array.axes().len() - 2];
        let mut rest = matrix;
        let mut labels = Vec::new();
        for axis in axes.iter().rev() {
            labels.insert(0, (axis.name.as_str(), axis.labels[rest % axis.labels.len()].as_str()));
            rest /= axis.labels.len();
        }
        labels
    }

    fn panel_name(&self, matrix: usize) -> String {
        // A number needs the name of its axis; other labels speak for themselves.
        let label = |(name, label): &(&str, &str)| match label.starts_with(|first: char| first.is_ascii_digit()) {
            true => format!("{name} {label}"),
            false => (*label).to_string(),
        };
        let labels: Vec<String> = self.panel_labels(matrix).iter().map(label).collect();
        labels.join(", ").trim().into()
    }

    fn short_name(&self, matrix: usize) -> String {
        let labels: Vec<&str> = self.panel_labels(matrix).iter().map(|(_, label)| *label).collect();
        labels.join(", ")
    }
}
