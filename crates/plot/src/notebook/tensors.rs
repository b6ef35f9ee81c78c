//! Display of tensors in notebooks: shape, statistics, and a heatmap.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use burn::tensor::{Int, Tensor};
use hooklens_hooks::Activation;

use super::tables::framed;
use super::{Show, Shown};
use crate::color::Scale;
use crate::draw::{dot_png, failed};
use crate::error::PlotError;
use crate::number_text::short;
use hooklens_io::numerals::grouped;

/// Maximum number of elements to summarize. Only the shape is shown for larger tensors.
const MOST: usize = 64_000_000;
/// Maximum number of matrices drawn.
const PANELS: usize = 8;
/// Maximum number of cells along each side of a drawn matrix.
const SIDE: usize = 160;
/// Number of values printed.
const WRITTEN: usize = 6;

impl Show for Activation {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let what = format!("{:?} {:?}", self.shape(), self.dtype()).to_lowercase();
        let count = self.shape().iter().product::<usize>();
        if count == 0 || count > MOST {
            return Ok(vec![Shown::text(&what), Shown::html(framed(&what, ""))]);
        }
        let values = self.to_ndarray().map_err(failed)?;
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        let said = statistics(&values);
        let first: Vec<String> = values.iter().take(WRITTEN).map(|value| short(*value)).collect();
        let more = if values.len() > WRITTEN { ", ..." } else { "" };
        let text = format!("{what}: {said}\n[{}{more}]", first.join(", "));
        if values.len() == 1 {
            let number = format!("<code>{}</code>\n", first.join(""));
            return Ok(vec![Shown::text(text), Shown::html(framed(&what, &number))]);
        }
        Ok(vec![Shown::text(text), Shown::html(framed(&what, &pictured(self.shape(), &values, &said)?))])
    }
}

/// Draws the last two axes as colors, with one image per index of the leading axes.
fn pictured(shape: &[usize], values: &[f64], said: &str) -> Result<String, PlotError> {
    let (outer, matrix) = shape.split_at(shape.len().saturating_sub(2));
    let (rows, columns) = match *matrix {
        [rows, columns] => (rows, columns),
        _ => (1, values.len()),
    };
    let scale = Scale::of(values.iter());
    let mut html = format!("<div>{said}</div>\n<div>{}</div>\n", scale.legend());
    let panels = outer.iter().product::<usize>();
    for (panel, values) in values.chunks(rows * columns).take(PANELS).enumerate() {
        let (down, across) = (rows.min(SIDE), columns.min(SIDE));
        let cells = pooled(values, [rows, columns], [down, across]);
        let png = dot_png((across as u32, down as u32), |x, y| scale.color(cells[y * across + x]))?;
        // Each cell is a square of `zoom` pixels, large enough to see and small enough for the page.
        let zoom = (SIDE / down.max(across)).clamp(1, 12);
        let name = place(outer, panel);
        html.push_str(&format!(
                "<figure style=\"display: inline-block; margin: 4px 8px 4px 0; vertical-align: top\"><img alt=\"{rows} \
                 by {columns} numbers as colors\" style=\"display: block; image-rendering: pixelated; border: 1px solid \
                 #999; width: {}px; height: {}px\" src=\"data:image/png;base64,{}\"><figcaption>{name}</figcaption></figure>\n",
                across * zoom,
                down * zoom,
                BASE64.encode(png)
            ));
    }
    if panels > PANELS {
        html.push_str(&format!("<div>{PANELS} of {} matrices</div>\n", grouped(panels)));
    }
    Ok(html)
}

/// The index of a matrix in a tensor, such as `[0, 3]`.
fn place(outer: &[usize], mut panel: usize) -> String {
    let mut at: Vec<usize> = Vec::new();
    for len in outer.iter().rev() {
        at.insert(0, panel % len);
        panel /= len;
    }
    if at.is_empty() { String::new() } else { format!("{at:?}") }
}

/// Downsamples a matrix. Each cell has the value with the largest magnitude among those that it covers.
fn pooled(values: &[f64], [rows, columns]: [usize; 2], [down, across]: [usize; 2]) -> Vec<f64> {
    let mut cells = vec![0.0f64; down * across];
    for (row, values) in values.chunks(columns).enumerate() {
        for (column, value) in values.iter().enumerate() {
            let cell = &mut cells[(row * down / rows) * across + column * across / columns];
            if value.is_nan() || value.abs() > cell.abs() {
                *cell = *value;
            }
        }
    }
    cells
}

/// Minimum, mean, maximum, standard deviation, and the number of values that are not finite.
fn statistics(values: &[f64]) -> String {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let count = finite.len() as f64;
    let mean = finite.iter().sum::<f64>() / count;
    let spread = (finite.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    let least = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let most = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut said = match finite.is_empty() {
        true => "no finite values".into(),
        false => format!("min {}, mean {}, max {}, std {}", short(least), short(mean), short(most), short(spread)),
    };
    let nan = values.iter().filter(|value| value.is_nan()).count();
    let infinite = values.len() - finite.len() - nan;
    for (count, what) in [(nan, "NaN"), (infinite, "infinite")] {
        if count > 0 {
            said.push_str(&format!(", {} {what}", grouped(count)));
        }
    }
    said
}

impl<const D: usize> Show for Tensor<D> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Activation::from(self.clone()).shown()
    }
}

impl<const D: usize> Show for Tensor<D, Int> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Activation::from(self.clone()).shown()
    }
}
