//! The color bar of pictures made of cells.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::color::{NONE, Scale, faded};
use super::draw::{BLACK_INK, FINE, LABELS, NAMES};
use super::number_text::short;
use super::pen::{path, polygon, text, wide};
use crate::error::PlotError;

const HEIGHT: f64 = 140.0;
const WIDTH: f64 = 14.0;
const STEPS: usize = 140;
/// Height of a legend entry below the bar, including the space above it.
const LEGEND: f64 = 26.0;

/// The colors of a scale, the numbers that they stand for, and the name of the quantity.
pub(super) struct ColorBar<'a> {
    pub(super) scale: Scale,
    /// Name of the quantity, with its unit.
    pub(super) name: &'a str,
    /// Whether there are values below the lower end of the scale, and above its upper end.
    pub(super) beyond: [bool; 2],
    /// Whether any values are NaN.
    pub(super) none: bool,
    /// Whether cells whose interval contains zero are faded.
    pub(super) faded: bool,
}

/// The lines of the legend of faded cells.
const FADED: [&str; 2] = ["interval", "contains 0"];

impl ColorBar<'_> {
    /// The texts beside the bar, from the top.
    fn ticks(&self) -> [String; 3] {
        let (least, most) = self.scale.ends();
        let [below, above] = self.beyond;
        let end = |value: f64, beyond: bool, sign: &str| format!("{}{}", if beyond { sign } else { "" }, short(value));
        [end(most, above, "≥ "), short(least / 2.0 + most / 2.0), end(least, below, "≤ ")]
    }

    /// The name, wrapped to the length of the bar.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in self.name.split(' ').filter(|word| !word.is_empty()) {
            match lines.last_mut() {
                Some(line) if wide(&format!("{line} {word}"), NAMES) <= HEIGHT => *line = format!("{line} {word}"),
                _ => lines.push(word.to_string()),
            }
        }
        lines
    }

    /// The length of the longest line of the name.
    fn longest(&self) -> f64 {
        self.lines().iter().map(|line| wide(line, NAMES)).fold(0.0, f64::max)
    }

    /// Width including the texts.
    pub(super) fn width(&self) -> f64 {
        let faded = FADED.iter().filter(|_| self.faded).map(|line| wide(line, LABELS));
        let ticks = self.ticks().iter().map(|tick| wide(tick, LABELS)).chain(faded).fold(24.0, f64::max);
        WIDTH + 10.0 + ticks + self.lines().len() as f64 * (NAMES + 5.0)
    }

    /// Height including the texts.
    pub(super) fn height(&self) -> f64 {
        let none = if self.none { LEGEND } else { 0.0 };
        let faded = if self.faded { LEGEND + LABELS } else { 0.0 };
        (HEIGHT + none + faded).max(self.longest()) + LABELS
    }

    /// Draws the bar with its upper left corner at this position.
    pub(super) fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        (x, y): (f64, f64),
    ) -> Result<(), PlotError> {
        let (least, most) = self.scale.ends();
        let part = HEIGHT / STEPS as f64;
        let block = |top: f64, height: f64| [(x, top), (x + WIDTH, top), (x + WIDTH, top + height), (x, top + height)];
        for step in 0..STEPS {
            let share = step as f64 / (STEPS - 1) as f64;
            let color = self.scale.color(most - (most - least) * share);
            polygon(area, block(y + step as f64 * part, part), color.mix(1.0))?;
        }
        let outline = |corners: [(f64, f64); 4]| {
            path(area, &[corners[0], corners[1], corners[2], corners[3], corners[0]], BLACK_INK, FINE)
        };
        outline(block(y, HEIGHT))?;
        for (place, tick) in self.ticks().iter().enumerate() {
            let middle = y + HEIGHT * place as f64 / 2.0;
            path(area, &[(x + WIDTH, middle), (x + WIDTH + 3.0, middle)], BLACK_INK, FINE)?;
            text(area, tick, (x + WIDTH + 6.0, middle), LABELS, (HPos::Left, VPos::Center), false)?;
        }
        let mut below = y + HEIGHT + 12.0;
        let mut legend = |color: RGBColor, lines: &[&str]| {
            let corners = block(below, 12.0);
            polygon(area, corners, color.mix(1.0))?;
            outline(corners)?;
            for (number, line) in lines.iter().enumerate() {
                let start = (x + WIDTH + 6.0, below + 6.0 + number as f64 * (LABELS + 1.0));
                text(area, line, start, LABELS, (HPos::Left, VPos::Center), false)?;
            }
            below += LEGEND;
            Ok(())
        };
        if self.none {
            legend(NONE, &["NaN"])?;
        }
        if self.faded {
            legend(faded(self.scale.color(0.0)), &FADED)?;
        }
        let lines = self.lines();
        for (number, line) in lines.iter().enumerate() {
            let from_last = (lines.len() - 1 - number) as f64 * (NAMES + 5.0);
            let middle = (x + self.width() - NAMES / 2.0 - from_last, y + HEIGHT.max(self.longest()) / 2.0);
            text(area, line, middle, NAMES, (HPos::Center, VPos::Center), true)?;
        }
        Ok(())
    }
}
